"""Which engine changed the world first: model, switches, process (promise P15).

An engine may change something once, when it is first built or asked, and no later comparison of before
and after finds a difference. So every use of an engine is watched, from the first on; what it changed
is restored, and remembered for all its tests. Nobody is blamed for what changes between the uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from batchproof.checks.broken import BrokenPromise
from batchproof.checks.environment import (
    World,
    model_of,
    process_of,
    put_back,
    require_same,
    settings_of,
    shared_of,
)
from batchproof.findings.finding import Finding
from batchproof.models.catalogue import ModelUnderTest
from batchproof.run.registry import EngineSpec


@dataclass
class WorldWatch:
    """What models were like when they were loaded, and what each engine changed first."""

    _loaded: dict[str, World] = field(default_factory=dict)
    _changes: list[tuple[EngineSpec, str, Finding]] = field(default_factory=list)

    def beside(self) -> WorldWatch:
        """Returns one that knows the same models, and nothing of engines."""
        return WorldWatch(self._loaded)

    def begin(self, subject: ModelUnderTest) -> None:
        """Notes what the model is like, before any engine uses it."""
        self._loaded[subject.name] = shared_of(subject.model)

    def as_loaded(self, subject: ModelUnderTest) -> World:
        """Returns the model's state and torch's switches from before any engine used it."""
        if subject.name not in self._loaded:
            self.begin(subject)
        return self._loaded[subject.name]

    @contextmanager
    def guard(self, spec: EngineSpec, subject: ModelUnderTest, when: str) -> Iterator[None]:
        """Notes the first setting that differs after the block, and restores all."""
        before = settings_of(subject.model) | process_of()
        try:
            yield
        finally:
            now = settings_of(subject.model) | process_of(before)
            if self._is_noted(spec, subject, before, now, when):
                put_back(subject.model, before)

    def has_damaged(self, spec: EngineSpec, subject: ModelUnderTest, when: str) -> bool:
        """Notes the first part of the model that is not as it was loaded. Sums over all weights."""
        return self._is_noted(spec, subject, self.as_loaded(subject), model_of(subject.model), when)

    def _is_noted(
        self, spec: EngineSpec, subject: ModelUnderTest, before: World, now: World, when: str
    ) -> bool:
        try:
            require_same(before, now, when)
        except BrokenPromise as error:
            self._changes.append((spec, subject.name, error.finding))
            return True
        return False

    def require_untouched(self, spec: EngineSpec, subject: ModelUnderTest) -> None:
        """Raises `BrokenPromise` for the first thing that the engine ever changed on this model."""
        for each, name, finding in self._changes:
            if (each.factory, name) == (spec.factory, subject.name):
                raise BrokenPromise(finding)

    def forget_engines(self) -> None:
        """Forgets what engines changed."""
        self._changes.clear()

    def is_damaged(self, subject: ModelUnderTest) -> bool:
        """Returns whether the model, or a switch, is not as it was when the model was loaded."""
        return shared_of(subject.model) != self.as_loaded(subject)
