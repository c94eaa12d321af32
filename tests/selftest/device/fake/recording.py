"""What a captured graph launches, and the memory that it will touch again at each replay.

A graph keeps no tensor alive. A replay touches the places where tensors lay at the capture: those that
the capture made stay its own, all others somebody must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.selftest.device.fake.report import Problem


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
