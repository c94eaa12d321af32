"""What happens while an engine runs on a fake device, what a captured graph launches, and the findings
of a run as values and as text.

A graph keeps no tensor alive. A replay touches the places where tensors lay at the capture: those that
the capture made stay its own, all others must be held.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Launches = Mapping[str, int]  # how often each kernel or operator was launched


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation that a GPU would reject or wait for."""

    what: str
    where: str  # file:line, the innermost of the engine, the harness or transformers
    in_capture: bool

    def __str__(self) -> str:
        return f"{'in a capture: ' if self.in_capture else ''}{self.what}, at {self.where}"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step launched on the device."""

    phase: str  # "build", or "decode" or "prompt": whether a row had more than one token
    replayed: Launches  # by CUDA graphs
    eager: Launches  # one after the other, by the host
    num_captures: int  # a step that captures also launches warm-ups

    @property
    def num_replayed(self) -> int:
        return sum(self.replayed.values())

    @property
    def num_eager(self) -> int:
        return sum(self.eager.values())


@dataclass(frozen=True, slots=True)
class Report:
    """An engine's build, counted as the first step, and its steps over a small workload."""

    shape: str
    backend: str
    num_layers: int
    steps: Sequence[Step]
    problems: Mapping[Problem, int]

    def usual(self, phase: str, has_graph: bool) -> Step | None:
        """Returns the phase's step with the median number of launches, excluding captures."""
        steps = [
            each
            for each in self.steps
            if each.phase == phase and not each.num_captures and bool(each.replayed) == has_graph
        ]
        steps.sort(key=lambda each: each.num_replayed + each.num_eager)
        return steps[len(steps) // 2] if steps else None


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
    """Collects events; `end_step` assigns those since the last call to a step, and keeps in `found` the
    problems that count."""

    recording: Recording | None = None  # of the graph that is being captured
    eager: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    num_captures: int = 0
    problems: Counter[Problem] = field(default_factory=Counter)
    steps: list[Step] = field(default_factory=list)
    found: Counter[Problem] = field(default_factory=Counter)
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

    def end_step(self, phase: str) -> None:
        """`phase` as in `Step`, or what has ended the run."""
        self.steps.append(Step(phase, dict(self.replayed), dict(self.eager), self.num_captures))
        # Building and capturing may wait for the device, but not inside the capture.
        may_wait = self.num_captures or phase == "build"
        for problem, count in self.problems.items():
            if problem.in_capture or not may_wait:
                self.found[problem] += count
        self.begin()

    def begin(self) -> None:
        """Forgets what has happened since the last step."""
        for each in (self.replayed, self.eager, self.problems):
            each.clear()
        self.num_captures = 0


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in LOOKED_FOR):
            short = name.partition("site-packages/")[2] or name.removeprefix(f"{ROOT}/")
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


# Column -> phase, and whether a graph was replayed.
COLUMNS = {
    "decode, captured": ("decode", True),
    "decode, eager": ("decode", False),
    "prompt, captured": ("prompt", True),
    "prompt, eager": ("prompt", False),
}


def text_of(reports: Sequence[Report]) -> str:
    lines = ["Kernels a step: replayed by a graph + launched by the host", ""]
    lines.append(_row("shape", "backend", "layers", *COLUMNS, "captures"))
    for report in reports:
        usual = [report.usual(*each) for each in COLUMNS.values()]
        cells = ["-" if each is None else f"{each.num_replayed} + {each.num_eager}" for each in usual]
        num_captures = sum(each.num_captures for each in report.steps)
        lines.append(_row(report.shape, report.backend, report.num_layers, *cells, num_captures))
    for report in reports:
        lines += [f"{report.shape}, {report.backend}: {line}" for line in problem_lines(report)]
    return "\n".join(lines)


def problem_lines(report: Report) -> list[str]:
    return [f"{count} x {problem}" for problem, count in report.problems.items()]


def _row(*cells: object) -> str:
    return "  ".join(f"{cell!s:<16}" for cell in cells).rstrip()
