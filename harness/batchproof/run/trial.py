"""One engine on one model, as a test sees it.

The `Laboratory` lives for the session and owns what is expensive: models, oracles, what an engine can
do. A `Trial` is what one test gets: it builds engines, runs workloads, judges answers, and sees to it
that a failure names engine, model and workload.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import torch

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    Request,
    StepRecord,
)
from batchproof.checks.answers import check_completions
from batchproof.checks.conduct import check_conduct
from batchproof.checks.environment import (
    World,
    require_same,
    settings_of,
    shared_of,
)
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.verdict import (
    ConformanceFailure,
    EngineRaised,
    Ledger,
    Run,
    Scene,
)
from batchproof.errors import (
    EngineHang,
    OracleError,
    UnsupportedModelError,
    UsageError,
)
from batchproof.models.catalogue import ModelUnderTest, load_model
from batchproof.oracle.adequacy import Adequacy, measure_adequacy
from batchproof.oracle.oracle import Oracle
from batchproof.oracle.precision import AS_SERVED, Precision
from batchproof.promises import Promise
from batchproof.run.capabilities import capabilities_of, scheduling_delay_of
from batchproof.run.registry import EngineSpec, reference_factory
from batchproof.run.time_limit import time_limit
from batchproof.workload.paste import workload_as_yaml
from batchproof.workload.workloads import Outcome, Workload, run

BUILD_TIME_LIMIT_S = 120.0
WORKLOAD = "workload, to paste into a file of cases/:"  # stands before one that is told
NUM_KEPT_RUNS = 32  # more than any example makes


@dataclass
class Laboratory:
    """Models, oracles and engine facts of one session, each made once and when first needed."""

    device: torch.device
    dtype: torch.dtype
    time_limit_s: float
    precision: Precision = AS_SERVED  # of the engines; of the model unless they say otherwise
    is_watched: bool = False  # keeps what models were like when loaded: sums over all weights
    _subjects: dict[str, ModelUnderTest] = field(default_factory=dict)
    _oracles: dict[str, Oracle] = field(default_factory=dict)
    _capabilities: dict[tuple[str, str], frozenset[Capability] | UnsupportedModelError] = field(
        default_factory=dict
    )
    _adequacy: dict[str, Adequacy] = field(default_factory=dict)
    _worlds: dict[str, World] = field(default_factory=dict)
    _is_bitwise: dict[tuple[str, str], bool] = field(default_factory=dict)

    def subject(self, model_name: str) -> ModelUnderTest:
        """Raises `UsageError` if there is no such model."""
        if model_name not in self._subjects:
            subject = load_model(model_name, self.device, self.dtype)
            # Looked at before any engine can alter the model's config.
            assert subject.context_len > 0, f"{model_name} has no positions"
            assert subject.vocab_size > 0, f"{model_name} has no tokens"
            self._subjects[model_name] = subject
            if self.is_watched:
                self._worlds[model_name] = shared_of(subject.model)
        return self._subjects[model_name]

    def as_loaded(self, model_name: str) -> World:
        """The model and torch's switches before any engine had it."""
        return self._worlds[model_name]

    def oracle(self, model_name: str) -> Oracle:
        if model_name not in self._oracles:
            self._oracles[model_name] = Oracle(
                self.subject(model_name), reference_factory(), self.precision
            )
        return self._oracles[model_name]

    def adequacy(self, subject: ModelUnderTest) -> Adequacy | None:
        """Of a model the user brought; the embedded ones are known to show faults."""
        if subject.is_embedded:
            return None
        if subject.name not in self._adequacy:
            self._adequacy[subject.name] = measure_adequacy(subject)
        return self._adequacy[subject.name]

    def capabilities(self, spec: EngineSpec, subject: ModelUnderTest) -> frozenset[Capability]:
        """Raises `UnsupportedModelError` if the engine refuses the model."""
        key = (spec.name, subject.name)
        if key not in self._capabilities:
            try:
                with time_limit(BUILD_TIME_LIMIT_S, "building the engine"):
                    found = capabilities_of(
                        spec.name, lambda config: spec.factory(subject.model, config)
                    )
            except UnsupportedModelError as error:
                self._capabilities[key] = error
            else:
                self._capabilities[key] = found
        known = self._capabilities[key]
        if isinstance(known, UnsupportedModelError):
            raise known
        return known

    def is_bitwise(self, trial: Trial) -> bool:
        """Rule O0: do a fresh engine, a second one, and one that has served the same before give the
        same bits for the same workload? If they differ within rounding (a reused prefix changes the
        shapes, say), the bit-level relations hold "within the bound" only, and the summary says so."""
        key = (trial.spec.name, trial.subject.name)
        if key not in self._is_bitwise:
            prompts = [tuple(range(1, length)) for length in (9, 3, 14, 6, 2)]
            requests = tuple(Request(f"o0-{i}", p, 4) for i, p in enumerate(prompts))
            workload = Workload(requests, EngineConfig(max_num_seqs=3, return_logits=True))
            with trial.engine(workload.config) as engine:
                first, again = (trial.run(workload, engine).completions for _ in range(2))
            second = trial.run(workload).completions
            bound = 2 * trial.oracle.kappa * trial.oracle.error.max_abs
            moved = _moved(first, again)
            # Beyond the bound it is no rounding: the relations shall say so, to the bit.
            self._is_bitwise[key] = _moved(first, second) == 0.0 and not 0.0 < moved <= bound
        return self._is_bitwise[key]


def _moved(before: Sequence[Completion], after: Sequence[Completion]) -> float:
    """The largest difference of the logits of two runs; infinite where they cannot be compared."""
    largest = 0.0
    for old, new in zip(before, after, strict=True):
        if old.logits is None or new.logits is None or old.logits.shape != new.logits.shape:
            return float("inf")
        if not torch.equal(old.logits, new.logits):
            largest = max(largest, float((old.logits - new.logits).abs().max()))
    return largest


class Trial:
    """An engine, a model, the right answers, and what has been compared so far.

    `promise`: the one the running test is about.
    """

    # No dataclass: Hypothesis would print all fields, models included, for each failing example.
    def __init__(
        self,
        lab: Laboratory,
        spec: EngineSpec,
        oracle: Oracle,
        capabilities: frozenset[Capability],
        promise: Promise,
    ) -> None:
        self.lab = lab
        self.spec = spec
        self.oracle = oracle
        self.capabilities = capabilities
        self.promise = promise
        self.scheduling_delay = 0  # steps, as the engine that was built last declares
        self.ledger = Ledger(precision=str(oracle.precision))
        self.has_happened: dict[str, bool] = {}  # what the test is about -> did a trace show it
        self._runs: deque[Run] = deque(maxlen=NUM_KEPT_RUNS)
        self._serials: dict[int, int] = {}  # id of an engine -> its serial

    def __repr__(self) -> str:
        return f"Trial({self.spec.name} on {self.subject.name})"

    @property
    def subject(self) -> ModelUnderTest:
        return self.oracle.subject

    @property
    def has_logits(self) -> bool:
        return Capability.LOGITS in self.capabilities

    def build(self, config: EngineConfig) -> Engine:
        """A fresh engine; whoever builds one closes it (`run` and `check` do)."""
        with time_limit(BUILD_TIME_LIMIT_S, "building the engine"):
            engine = self.spec.factory(self.subject.model, config)
        self._serials[id(engine)] = max(self._serials.values(), default=0) + 1
        release = getattr(engine, "release", None)
        self.ledger.release = release if isinstance(release, str) else None
        self.ledger.conventions = [str(each) for each in getattr(engine, "notes", ())]
        self._note_delay(engine)
        return engine

    def _note_delay(self, engine: Engine) -> None:
        """A declaration is part of the verdict, so it is told. Raises `UsageError` if it is none, or is
        not that of the engine built before."""
        before = self.scheduling_delay
        delay = scheduling_delay_of(self.spec.name, engine, self.capabilities)
        if self._serials[id(engine)] > 1 and delay != before:
            raise UsageError(
                f"engine {self.spec.name!r}: scheduling_delay is {delay}, but was {before} when it was "
                f"built before: it must be the same whatever the config"
            )
        self.scheduling_delay = delay
        if delay:
            declared = f"declares a scheduling delay of {delay} step"
            self.ledger.conventions.append(declared)
            note = f"{self.spec.name} {declared}, and is granted it"
            if note not in self.ledger.notes:
                self.ledger.notes.append(note)

    def close(self, engine: Engine) -> None:
        if Capability.CLOSING in self.capabilities:
            engine.close()  # type: ignore[attr-defined]

    @contextmanager
    def engine(self, config: EngineConfig) -> Iterator[Engine]:
        """A fresh engine for several calls."""
        engine = self.build(config)
        try:
            yield engine
        finally:
            self.close(engine)

    def run(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Run on the given engine, else on a fresh one. What the engine raises becomes a failure."""
        if engine is None:
            with self.reporting(workload, "the engine raised"), self.engine(workload.config) as fresh:
                return self.run(workload, fresh)
        serial = self._serials[id(engine)]
        self._runs.append(Run(serial, workload))
        self.ledger.num_runs += 1
        before = settings_of(self.subject.model)
        can_share = may_share(workload.config, self.capabilities)
        num_records = len(self.trace_of(engine)) if can_share else 0
        with self.reporting(workload, "the engine raised"):
            outcome = run(engine, workload, self.lab.time_limit_s)
            require_same(before, settings_of(self.subject.model), "while the engine worked")
        computed: tuple[Computed, ...] = ()
        if can_share:
            records = self.trace_of(engine)[num_records:]
            computed = ComputedPrefixes(workload, outcome.completions).note_all(records).computed
        self._runs[-1] = Run(serial, workload, outcome.completions, computed)
        with self.reporting(workload):
            self._require_logits(workload, outcome)
        return outcome

    def _require_logits(self, workload: Workload, outcome: Outcome) -> None:
        """An engine that has the capability fills them whenever it is asked to."""
        if not (workload.config.return_logits and self.has_logits) or workload.needs_stepping:
            return
        for completion in outcome.completions:
            if completion.token_ids and completion.logits is None:
                raise ConformanceFailure(
                    self.promise,
                    f"the engine has the capability logits, but those of request "
                    f"{completion.request_id!r} are None although config.return_logits is set",
                ).found_by("logits")

    def check(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Run a workload of good requests; judge every answer against the oracle, and the conduct."""
        if engine is None:
            with self.reporting(workload, "the engine raised"), self.engine(workload.config) as fresh:
                return self.check(workload, fresh)
        num_records = len(self.trace_of(engine))
        outcome = self.run(workload, engine)
        with self.reporting(workload):
            self.judge(workload.requests, outcome)
            records = self.trace_of(engine)[num_records:]
            earlier = self.computed_before(engine)
            check_conduct(workload, outcome, records, self.capabilities, earlier, self.scheduling_delay)
        return outcome

    def computed_before(self, engine: Engine) -> tuple[Computed, ...]:
        """By this engine, in the runs before its last: what that may have begun behind."""
        serial = self._serials[id(engine)]
        *before, _ = (run for run in self._runs if run.serial == serial)
        return tuple(each for run in before for each in run.computed)

    def trace_of(self, engine: Engine) -> Sequence[StepRecord]:
        """Since it was built; empty for an engine without the capability."""
        has_trace = Capability.TRACING in self.capabilities
        return engine.trace if has_trace else ()  # type: ignore[attr-defined]

    def must_show(self, what: str, did_happen: bool) -> None:
        """A test of preemption, chunks or slot reuse proves nothing if there was none: in one of its
        examples at least the trace must show it, or the test fails."""
        self.has_happened[what] = self.has_happened.get(what, False) or did_happen

    def judge(self, requests: Sequence[Request], outcome: Outcome) -> None:
        check_completions(requests, outcome.completions, self.oracle, self.ledger)

    @contextmanager
    def reporting(
        self, workload: Workload, who: str = "judging what the engine gave raised"
    ) -> Iterator[None]:
        """Everything that goes wrong inside names engine, model and workload."""
        try:
            yield
        except ConformanceFailure as failure:
            if not failure.context:
                failure.context = self._context(workload, failure.promise)
                failure.scene = failure.scene or self._scene(workload)
            raise
        except EngineHang as hang:
            if hang.scene is None:
                hang.add(self._context(workload, Promise.P10))
                hang.scene = self._scene(workload)
            raise
        except OracleError:
            raise  # ours, not the engine's
        except (Exception, SystemExit) as error:
            finding = f"{who} {type(error).__name__}: {error}"
            raised = EngineRaised(self.promise, finding, _last_frames(error))
            raised.context = self._context(workload, self.promise)
            raised.scene = self._scene(workload)
            raise raised from None

    def _scene(self, workload: Workload) -> Scene:
        """The last run of this workload and what its engine did before; at least the workload."""
        at = next((run for run in reversed(self._runs) if run.workload == workload), None)
        return Scene((Run(0, workload),) if at is None else self._up_to(at))

    def _up_to(self, last: Run) -> tuple[Run, ...]:
        """All runs of one engine up to this one."""
        end = next(i for i, run in enumerate(self._runs) if run is last)
        return tuple(run for run in islice(self._runs, end + 1) if run.serial == last.serial)

    def scene_of(self, answer: Completion, other: Completion) -> Scene | None:
        """Where two answers that were compared came from; None if they were made up from others."""
        found = [self._origin(each) for each in (answer, other)]
        if found[0] is None or found[1] is None:
            return None
        return Scene(self._up_to(found[0]), self._up_to(found[1]))

    def _origin(self, answer: Completion) -> Run | None:
        """The latest run that gave the answer, else one whose answer it is cut from."""
        given = [(run, c) for run in reversed(self._runs) for c in run.completions]
        whole = (run for run, c in given if c is answer)
        tokens, name = answer.token_ids, answer.request_id
        cut = (r for r, c in given if c.request_id == name and c.token_ids[: len(tokens)] == tokens)
        return next(whole, None) or next(cut, None)

    def _context(self, workload: Workload, promise: Promise) -> list[str]:
        yaml = workload_as_yaml(workload, promise.id)
        return [
            f"engine: {self.spec.name}    model: {self.subject}",
            WORKLOAD,
            *(f"    {line}" for line in yaml.splitlines()),
        ]


def _last_frames(error: BaseException, count: int = 3) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)[-count:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
