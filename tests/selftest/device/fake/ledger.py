"""What happens while an engine runs on a fake device, and what a captured graph launches.

A graph keeps no tensor alive. A replay touches the places where tensors lay at the capture: those that
the capture made stay its own, all others must be held.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.selftest.device.fake.report import Problem, Step


@dataclass
class Recording:
    """The launches of one graph. As long as a weak reference lives, no other storage gets its key."""

    launches: Counter[str] = field(default_factory=Counter)
    _made: dict[int, StorageWeakRef] = field(default_factory=dict)
    _touched: dict[int, tuple[StorageWeakRef, Problem]] = field(default_factory=dict)

    def make(self, results: Iterable[Tensor], given: Iterable[Tensor]) -> None:
        """Notes the storages of results as the capture's own, unless what was given has them."""
        before = dict(_storages(given))
        self._made |= {key: each for key, each in _storages(results) if key not in before}

    def touch(self, name: str, place: str, tensors: Iterable[Tensor]) -> None:
        """Notes what a launch reads or writes."""
        for key, reference in _storages(tensors):
            if key not in self._made and key not in self._touched:
                problem = Problem(f"{name} touches a tensor that is freed by the replay", place, True)
                self._touched[key] = reference, problem

    def freed(self) -> list[Problem]:
        """Returns what a replay would touch although it was freed since the capture."""
        return [problem for reference, problem in self._touched.values() if reference.expired()]


def _storages(tensors: Iterable[Tensor]) -> Iterator[tuple[int, StorageWeakRef]]:
    for each in tensors:
        if each.device.type == "cuda":
            storage = each.untyped_storage()
            yield storage._cdata, StorageWeakRef(storage)


ROOT = Path(__file__).parents[4]
LOOKED_FOR = ("/batchproof_paged/", "/batchproof_engines/", "/batchproof/", "/transformers/", "/test_")


@dataclass
class Ledger:
    """Collects events; `end_step` assigns those since the last call to a step."""

    recording: Recording | None = None  # of the graph that is being captured
    eager: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    num_captures: int = 0
    problems: Counter[Problem] = field(default_factory=Counter)
    current_device: int = 0
    device: int = 0  # where everything is to be

    def launch(self, name: str, tensors: Iterable[Tensor] = ()) -> None:
        """Records a kernel that reads or writes these tensors."""
        if self.recording is None:
            self.eager[name] += 1
        else:
            self.recording.launches[name] += 1
            self.recording.touch(name, _place(), tensors)

    def made(self, results: Iterable[Tensor], given: Iterable[Tensor]) -> None:
        """Records an operator's results, which may be views of what it was given."""
        if self.recording is not None:
            self.recording.make(results, given)

    def replay(self, recording: Recording) -> None:
        self.replayed.update(recording.launches)
        self.problems.update(recording.freed())

    def problem(self, what: str) -> None:
        self.problems[Problem(what, _place(), self.recording is not None)] += 1

    def forbidden_in_capture(self, what: str) -> None:
        if self.recording is not None:
            self.problem(what)

    def used_device(self) -> None:
        """Records an operation on the current device."""
        if self.current_device != self.device:
            self.problem(f"cuda:{self.current_device} is current, and used, but not cuda:{self.device}")

    def end_step(self, phase: str) -> Step:
        """`phase` as in `Step`, or "build"."""
        step = Step(
            phase,
            dict(self.replayed),
            dict(self.eager),
            self.num_captures,
            {
                problem: count
                for problem, count in self.problems.items()
                # Building and capturing may wait for the device, but not inside the capture.
                if problem.in_capture or not (self.num_captures or phase == "build")
            },
        )
        for each in (self.replayed, self.eager, self.problems):
            each.clear()
        self.num_captures = 0
        return step


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in LOOKED_FOR):
            short = name.partition("site-packages/")[2] or name.removeprefix(f"{ROOT}/")
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
