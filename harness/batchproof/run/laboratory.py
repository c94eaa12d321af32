"""What is expensive and kept for a session: models, oracles, capabilities of engines."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from batchproof.api import Capability
from batchproof.checks import environment
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.environment import World, settings_of
from batchproof.errors import BatchproofError, EngineHang, UnsupportedModelError, UsageError
from batchproof.findings.finding import Finding
from batchproof.models.catalogue import ModelUnderTest, load_model
from batchproof.oracle.adequacy import Adequacy, measure_adequacy
from batchproof.oracle.oracle import Oracle
from batchproof.oracle.precision import AS_SERVED, Precision
from batchproof.run.call_notes import notes
from batchproof.run.capabilities import Offer, offer_of
from batchproof.run.registry import EngineSpec, reference_factory


@dataclass
class WorldWatch:
    """What models were like when they were loaded, and what each engine changed first (promise P15).

    An engine may change something once, when it is first built or asked, and no later comparison of
    before and after finds a difference. So every use of an engine is watched, from the first on; what
    it changed is restored, and remembered for all its tests. No engine is blamed for what changes
    between the uses.
    """

    loaded: dict[str, World] = field(default_factory=dict)  # by the name of the model
    _changes: list[tuple[EngineSpec, str, Finding]] = field(default_factory=list)

    def begin(self, subject: ModelUnderTest) -> None:
        """Notes what the model is like, before any engine uses it."""
        self.loaded[subject.name] = environment.shared_of(subject.model)

    def as_loaded(self, subject: ModelUnderTest) -> World:
        """Returns the model's state and torch's switches from before any engine used it."""
        if subject.name not in self.loaded:
            self.begin(subject)
        return self.loaded[subject.name]

    @contextmanager
    def guard(self, spec: EngineSpec, subject: ModelUnderTest, when: str) -> Iterator[None]:
        """Notes the first setting that differs after the block, and restores all."""
        before = settings_of(subject.model) | environment.process_of()
        try:
            yield
        finally:
            now = settings_of(subject.model) | environment.process_of(before)
            if self.has_noted(spec, subject, before, now, when):
                environment.put_back(subject.model, before)

    def has_noted(
        self, spec: EngineSpec, subject: ModelUnderTest, before: World, now: World, when: str
    ) -> bool:
        """Notes the first thing that differs, and returns whether there is one."""
        first = list(islice(environment.world_findings(before, now, when), 1))
        self._changes += [(spec, subject.name, finding) for finding in first]
        return bool(first)

    def require_untouched(self, spec: EngineSpec, subject: ModelUnderTest) -> None:
        """Raises `BrokenPromise` for the first thing that the engine ever changed on this model."""
        for each, name, finding in self._changes:
            if (each.factory, name) == (spec.factory, subject.name):
                raise BrokenPromise(finding)


BUILD_TIME_LIMIT_S = 120.0
FIRST_USE = "while the engine was first built"


@dataclass
class Laboratory:
    """Models, oracles and facts about engines, each computed once, when first needed."""

    device: torch.device
    dtype: torch.dtype
    time_limit_s: float
    precision: Precision = AS_SERVED  # of the engines; of the model unless they say otherwise
    watch: WorldWatch = field(default_factory=WorldWatch)
    _subjects: dict[str, ModelUnderTest] = field(default_factory=dict)
    _oracles: dict[str, Oracle] = field(default_factory=dict)
    _offers: dict[tuple[str, str], Offer | UnsupportedModelError] = field(default_factory=dict)
    lost: dict[str, EngineHang] = field(default_factory=dict)  # engines that hung at first contact
    _adequacy: dict[str, Adequacy] = field(default_factory=dict)
    is_bitwise: dict[tuple[str, str], bool] = field(default_factory=dict)  # rule O0: engine, model

    def beside(self, time_limit_s: float) -> "Laboratory":
        """Returns one that shares models and right answers with this one, and knows no engine."""
        return replace(
            self,
            time_limit_s=time_limit_s,
            watch=WorldWatch(self.watch.loaded),
            _offers={},
            lost={},
            is_bitwise={},
        )

    def drop_damaged(self) -> None:
        """Drops the models that are not as they were loaded."""
        for name, subject in list(self._subjects.items()):
            if environment.shared_of(subject.model) != self.watch.as_loaded(subject):
                self.drop(name)

    def subject(self, model_name: str) -> ModelUnderTest:
        """Returns the model, loaded at the first call. Raises `UsageError` if there is none."""
        if model_name not in self._subjects:
            subject = load_model(model_name, self.device, self.dtype)
            # Read before any engine can alter the model's config.
            assert subject.context_len > 0, f"{model_name} has no positions"
            assert subject.vocab_size > 0, f"{model_name} has no tokens"
            self._subjects[model_name] = subject
            self.watch.begin(subject)
        return self._subjects[model_name]

    def look_after(self, spec: EngineSpec, subject: ModelUnderTest, when: str) -> None:
        """Drops a model that the engine has damaged: the next engine gets one as it was loaded. Sums
        over all weights."""
        loaded, now = self.watch.as_loaded(subject), environment.model_of(subject.model)
        if self.watch.has_noted(spec, subject, loaded, now, when):
            self.drop(subject.name)

    def drop(self, model_name: str) -> None:
        """Drops the model and every answer that may have come from it while it was damaged."""
        for known in (self._subjects, self._oracles, self._adequacy):
            known.pop(model_name, None)

    def oracle(self, model_name: str) -> Oracle:
        if model_name not in self._oracles:
            self._oracles[model_name] = Oracle(
                self.subject(model_name), reference_factory(), self.precision
            )
        return self._oracles[model_name]

    def adequacy(self, subject: ModelUnderTest) -> Adequacy | None:
        """Returns how well a user's model shows faults; None for an embedded one, which is known to."""
        if subject.is_embedded:
            return None
        if subject.name not in self._adequacy:
            self._adequacy[subject.name] = measure_adequacy(subject)
        return self._adequacy[subject.name]

    def capabilities(self, spec: EngineSpec, subject: ModelUnderTest) -> frozenset[Capability]:
        """Returns the capabilities of the engine on this model. Raises as `offer` does."""
        return self.offer(spec, subject).capabilities

    def offer(self, spec: EngineSpec, subject: ModelUnderTest) -> Offer:
        """Returns what the engine offers on this model. Raises `UnsupportedModelError` if the engine
        refuses the model, what `offer_of` raises, and `EngineHang` for all models if the engine does
        not return on one of them."""
        if spec.name in self.lost:
            raise self.lost[spec.name]
        key = (spec.name, subject.name)
        if key not in self._offers:
            notes().change(engine=spec.name, model=subject.name, first_contact=True)
            try:
                with self.watch.guard(spec, subject, FIRST_USE):
                    self._offers[key] = offer_of(
                        spec.name, lambda config: spec.factory(subject.model, config), self.time_limit_s
                    )
            except UnsupportedModelError as error:
                self._offers[key] = error
            except EngineHang as hang:
                self.lost[spec.name] = hang
                raise
            finally:
                notes().change(first_contact=False)
            self.look_after(spec, subject, FIRST_USE)
        known = self._offers[key]
        if isinstance(known, UnsupportedModelError):
            raise known
        return known

    def block_size_multiple(self, spec: EngineSpec, subject: ModelUnderTest) -> int:
        """Returns that of the engine on this model, as far as it has been asked for its offer."""
        known = self._offers.get((spec.name, subject.name))
        return known.block_size_multiple if isinstance(known, Offer) else 1


def first_contact(lab: Laboratory, spec: EngineSpec, subject: ModelUnderTest) -> frozenset[Capability]:
    """Returns the capabilities of an engine that a user names. Raises as `Laboratory.offer` does, but
    `UsageError` where the engine, or its program, refuses an option: with a `ValueError` that names
    it."""
    try:
        return lab.capabilities(spec, subject)
    except BatchproofError:
        raise
    except Exception as error:
        given = {each.partition("=")[0] for each in spec.name.partition("?")[2].split("&")}
        is_of_value = isinstance(error, ValueError) or str(error).startswith("ValueError: ")
        if is_of_value and given & {*re.findall(r"\w+", str(error))}:
            raise UsageError(f"engine {spec.name!r} cannot be built: {error}") from error
        raise
