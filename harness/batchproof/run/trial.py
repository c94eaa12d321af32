"""One engine on one model, as a test sees it: a `Trial` builds engines, runs workloads, judges answers,
and raises every failure with engine, model and workload.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    Request,
    StepRecord,
)
from batchproof.checks.answers import check_completions
from batchproof.checks.broken import BrokenPromise, broken
from batchproof.checks.conduct import check_conduct
from batchproof.checks.environment import require_same, settings_of
from batchproof.checks.ledger import Ledger
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.errors import EngineHang, OracleError, UsageError
from batchproof.findings.failure import Failure, Run, Scene, Subject
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle
from batchproof.promises import Promise
from batchproof.run.capabilities import scheduling_delay_of
from batchproof.run.failures import ConformanceFailure, HangFailure, last_frames
from batchproof.run.laboratory import BUILD_TIME_LIMIT_S, Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.serving import serve
from batchproof.run.time_limit import time_limit
from batchproof.workload.workloads import Outcome, Workload

NUM_KEPT_RUNS = 32  # more than any example makes


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
        self._computed: dict[int, list[tuple[Computed, ...]]] = {}  # serial -> prefixes of each run

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
            with self.reporting(workload, Rule.RAISED), self.engine(workload.config) as fresh:
                return self.run(workload, fresh)
        serial = self._serials[id(engine)]
        self._runs.append(Run(serial, workload))
        self.ledger.num_runs += 1
        before = settings_of(self.subject.model)
        can_share = may_share(workload.config, self.capabilities)
        num_records = len(self.trace_of(engine)) if can_share else 0
        with self.reporting(workload, Rule.RAISED):
            outcome = serve(engine, workload, self.lab.time_limit_s)
            require_same(before, settings_of(self.subject.model), "while the engine worked")
        computed: tuple[Computed, ...] = ()
        if can_share:
            records = self.trace_of(engine)[num_records:]
            computed = ComputedPrefixes(workload, outcome.completions).note_all(records).computed
        self._computed.setdefault(serial, []).append(computed)
        self._runs[-1] = Run(serial, workload, outcome.completions)
        with self.reporting(workload):
            self._require_logits(workload, outcome)
        return outcome

    def _require_logits(self, workload: Workload, outcome: Outcome) -> None:
        """An engine that has the capability fills them whenever it is asked to."""
        if not (workload.config.return_logits and self.has_logits) or workload.needs_stepping:
            return
        for completion in outcome.completions:
            if completion.token_ids and completion.logits is None:
                raise broken(Rule.LOGITS_MISSING, completion.request_id, promise=self.promise)

    def check(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Run a workload of good requests; judge every answer against the oracle, and the conduct."""
        if engine is None:
            with self.reporting(workload, Rule.RAISED), self.engine(workload.config) as fresh:
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
        by_run = self._computed.get(self._serials[id(engine)], [])
        return tuple(each for computed in by_run[:-1] for each in computed)

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
    def reporting(self, workload: Workload, rule: Rule = Rule.UNREADABLE) -> Iterator[None]:
        """Whatever goes wrong inside is raised as a failure that names engine, model and workload.

        `rule` is what an exception of any other kind breaks. Raises `ConformanceFailure`,
        `HangFailure`, and `OracleError`, which is no failure of the engine.
        """
        try:
            yield
        except (ConformanceFailure, HangFailure, OracleError):
            raise
        except BrokenPromise as error:
            raise ConformanceFailure(self.failure(error.finding, workload)) from None
        except EngineHang as hang:
            finding = found(Rule.HANG, what=hang.what, evidence=hang.evidence)
            raise HangFailure(self.failure(finding, workload)) from None
        except (Exception, SystemExit) as error:
            facts: Facts = {"error": type(error).__name__, "message": str(error)}
            frames = last_frames(error)
            finding = found(rule, promise=self.promise, frames=frames, **facts)
            raise ConformanceFailure(self.failure(finding, workload)) from None

    def failure(
        self, finding: Finding, workload: Workload | None = None, scene: Scene | None = None
    ) -> Failure:
        """The finding with its scene: the given one, else that of the workload or of the last run."""
        if workload is None:
            workload = self._runs[-1].workload if self._runs else Workload(())
        return Failure(finding, scene or self._scene(workload), self.under_test)

    @property
    def under_test(self) -> Subject:
        """Engine and model, as reports name them."""
        subject, precision = self.subject, str(self.oracle.precision)
        device, dtype = subject.model.device.type, subject.dtype_name
        release = self.ledger.release
        return Subject(self.spec.name, release, subject.name, device, dtype, precision)

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
