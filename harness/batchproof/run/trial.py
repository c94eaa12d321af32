"""One engine on one model, as a test uses it: a `Trial` builds engines, runs workloads and judges
answers."""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    Request,
    SamplingLimits,
    StepRecord,
)
from batchproof.checks.answers import completion_findings, presence_findings
from batchproof.checks.broken import BrokenPromise, broken, require
from batchproof.checks.conduct import conduct_findings
from batchproof.checks.contract_types import checked_trace
from batchproof.checks.happened import OWN_CHOICE, happened_in
from batchproof.checks.lifecycle import Cuts, Part, parts
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.refusals import refusal_findings
from batchproof.decoding.grammar import TakenGrammars
from batchproof.decoding.sampling import TakenFields
from batchproof.errors import EngineHang, OracleError, UsageError
from batchproof.findings.finding import Facts, Failure, Finding, Rule, Run, Scene, Subject, found
from batchproof.generators.strategies import SMALL_BLOCKS
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle
from batchproof.records.trial_record import Ledger
from batchproof.requirements.promises import Promise
from batchproof.run.adapting import LoadedAdapters
from batchproof.run.call_notes import notes
from batchproof.run.capabilities import Declarations
from batchproof.run.failures import ConformanceFailure, HangFailure, last_frames, notes_of, raised_at
from batchproof.run.interrupting import interrupter
from batchproof.run.laboratory import BUILD_TIME_LIMIT_S, Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.serving import serve
from batchproof.run.time_limit import contained, time_limit
from batchproof.workload.workloads import UPDATE, Interruption, Outcome, Workload, in_blocks

NUM_KEPT_RUNS = 80  # more than any example or sweep makes


@dataclass
class EngineState:
    """What an engine has been given."""

    serial: int  # in the order in which the engines of a trial were built, from 1 on
    adapters: LoadedAdapters = field(default_factory=LoadedAdapters)
    weights: int = 0  # number of the variant that it has
    computed: tuple[Computed, ...] = ()  # the prefixes that it knows
    computed_before: tuple[Computed, ...] = ()  # those it knew before its last run

    def update(self, weights: int) -> None:
        """Notes that the engine has other weights, and so knows no prefix."""
        self.weights, self.computed = weights, ()


class RunHistory:
    """What has happened in a trial: the engines in the order in which they were built, and the latest
    `NUM_KEPT_RUNS` runs of all of them, oldest first."""

    def __init__(self) -> None:
        self._num_built = 0
        self._states: dict[int, EngineState] = {}  # by the id of an engine
        self._runs: deque[Run] = deque(maxlen=NUM_KEPT_RUNS)

    def add(self, engine: Engine) -> EngineState:
        """Returns the state of an engine that was just built."""
        self._num_built += 1
        self._states[id(engine)] = EngineState(self._num_built)
        return self.of(engine)

    def of(self, engine: Engine) -> EngineState:
        return self._states[id(engine)]

    def begin(self, engine: Engine, workload: Workload) -> None:
        self._runs.append(Run(self.of(engine).serial, workload))

    def end(
        self, engine: Engine, completions: tuple[Completion, ...], computed: tuple[Computed, ...]
    ) -> None:
        """Notes what came of the last run, and all prefixes that are known after it."""
        self._runs[-1] = replace(self._runs[-1], completions=completions)
        state = self.of(engine)
        state.computed_before, state.computed = state.computed, computed
        state.weights = self.last_workload.updates[-1].weights

    @property
    def last_workload(self) -> Workload:
        """The workload of the last run; an empty one if there was none."""
        return self._runs[-1].workload if self._runs else Workload(())

    def scene_of_workload(self, workload: Workload) -> Scene:
        """Returns the last run of this workload after its engine's earlier ones; if there is none,
        the workload alone."""
        at = next((run for run in reversed(self._runs) if run.workload == workload), None)
        return Scene((Run(0, workload),) if at is None else self._up_to(at))

    def _up_to(self, last: Run) -> tuple[Run, ...]:
        """Returns all runs of the same engine up to this one."""
        end = next(i for i, run in enumerate(self._runs) if run is last)
        return tuple(run for run in islice(self._runs, end + 1) if run.serial == last.serial)

    def scene_of_answers(self, answer: Completion, other: Completion) -> Scene | None:
        """Returns the runs that two compared answers come from; None if one of them comes from no
        run."""
        found = [self._origin(each) for each in (answer, other)]
        if found[0] is None or found[1] is None:
            return None
        return Scene(self._up_to(found[0]), self._up_to(found[1]))

    def _origin(self, answer: Completion) -> Run | None:
        """Returns the latest run that gave the answer, else one whose answer begins with it."""
        given = [(run, c) for run in reversed(self._runs) for c in run.completions]
        whole = (run for run, c in given if c is answer)
        tokens, name = answer.token_ids, answer.request_id
        cut = (r for r, c in given if c.request_id == name and c.token_ids[: len(tokens)] == tokens)
        return next(whole, None) or next(cut, None)


class Trial:
    """An engine, a model, the right answers, and counts of what has been compared.

    Every failure it raises names engine, model and workload. `promise` is the one that the running
    test is about. The engine is asked for its `capabilities`, unless it cannot be. Raises as
    `Laboratory.offer` does.
    """

    # No dataclass: Hypothesis would print all fields, models included, for each failing example.
    def __init__(
        self,
        lab: Laboratory,
        spec: EngineSpec,
        oracle: Oracle,
        promise: Promise,
        capabilities: frozenset[Capability] | None = None,
    ) -> None:
        if capabilities is None:
            capabilities = lab.capabilities(spec, oracle.subject)
        self.lab = lab
        self.spec = spec
        self.oracle = oracle
        self.capabilities = capabilities
        self.promise = promise
        self.scheduling_delay = 0  # steps, as the engine that was built last declares
        self.ledger = Ledger(precision=str(oracle.precision))
        self.has_happened: dict[str, bool] = {}  # what the test is about -> whether a trace showed it
        self.history = RunHistory()
        self.last_failure: Failure | None = None  # should Hypothesis not let it through
        self.began = time.monotonic()

    def renewed(self, promise: Promise | None = None) -> "Trial":
        """Returns a trial of the same engine and model in which nothing has happened yet."""
        return Trial(self.lab, self.spec, self.oracle, promise or self.promise, self.capabilities)

    def __repr__(self) -> str:
        return f"Trial({self.spec.name} on {self.subject.name})"

    @property
    def subject(self) -> ModelUnderTest:
        return self.oracle.subject

    @property
    def has_logits(self) -> bool:
        return Capability.LOGITS in self.capabilities

    @property
    def fields(self) -> TakenFields:
        """The fields of `SamplingParams` that the engine takes."""
        return self.lab.offer(self.spec, self.subject).fields

    @property
    def grammars(self) -> TakenGrammars:
        """The grammars that the engine takes."""
        return self.lab.offer(self.spec, self.subject).grammars

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The smallest sizes of a block that the engine serves: with them, few tokens fill several."""
        fitted = (self.fitted(EngineConfig(block_size=size)) for size in SMALL_BLOCKS)
        return tuple(sorted({each.block_size for each in fitted}))

    def fitted(self, config: EngineConfig) -> EngineConfig:
        """Returns the limits in blocks that the engine serves."""
        return in_blocks(config, self.lab.block_size_multiple(self.spec, self.subject))

    def build(self, config: EngineConfig) -> Engine:
        """Returns a fresh engine with these limits, `fitted`, which the caller must `close` (`run` and
        `check` close theirs). Raises `EngineHang` if building takes longer than `BUILD_TIME_LIMIT_S`
        seconds and than a call may, what the factory raises, and `UsageError` for a `scheduling_delay`
        that is invalid, or another than that of an engine built before."""
        config = self.fitted(config)
        guard = self.lab.watch.guard(self.spec, self.subject, "while the engine was built")
        with self._engines_time(), guard, time_limit(self._build_limit_s, "building the engine"):
            engine = self.spec.factory(self.subject.model, config)
        state = self.history.add(engine)
        release = getattr(engine, "release", None)
        self.ledger.release = release if isinstance(release, str) else None
        told = tuple(str(each) for each in getattr(engine, "notes", ()))
        limits = getattr(engine, "sampling_limits", SamplingLimits())
        self.ledger.conventions = (*told, *limits.sentences())
        delay = Declarations(self.spec.name, engine).scheduling_delay(self.capabilities)
        if delay != self.scheduling_delay and state.serial > 1:
            raise UsageError(
                f"engine {self.spec.name!r}: scheduling_delay is {delay}, but was "
                f"{self.scheduling_delay} when it was built before: it must be the same whatever the "
                f"config"
            )
        self.scheduling_delay = delay
        if delay:  # which affects the verdict
            declared = f"declares a scheduling delay of {delay} step"
            self.ledger.conventions += (declared,)
            self.ledger.note(f"{self.spec.name} {declared}, and is granted it")
        return engine

    def close(self, engine: Engine) -> None:
        """Closes the engine, if it has the capability. Raises `EngineHang`, and what `close` raises."""
        self.ledger.count(getattr(engine, "counters", {}))
        if Capability.CLOSING in self.capabilities:
            with self._engines_time(), time_limit(self._build_limit_s, "close"):
                engine.close()  # type: ignore[attr-defined]

    @property
    def _build_limit_s(self) -> float:
        return max(BUILD_TIME_LIMIT_S, self.lab.time_limit_s)

    @contextmanager
    def _engines_time(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.ledger.engine_seconds += time.monotonic() - began

    @contextmanager
    def engine(self, config: EngineConfig) -> Iterator[Engine]:
        """Yields a fresh engine for several calls, and closes it. Raises as `build` does."""
        engine = self.build(config)
        try:
            yield engine
        finally:
            self.close(engine)

    def run(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Runs a workload, its limits `fitted`, on the given engine, else on a fresh one, and returns
        its outcome unjudged.

        An engine for several calls comes from `engine` or `build`. The run counts as history of the
        engine and appears in reports of later failures.

        Raises `ConformanceFailure` if the engine raises, returns values of the wrong type, has changed
        settings of model, torch or process in this or an earlier use, or leaves out logits it was asked
        for. Raises `HangFailure` if it exceeds the time limit or the step bound.
        """
        workload = replace(workload, config=self.fitted(workload.config))
        if engine is None:
            with self.reporting(workload, Rule.RAISED), self.engine(workload.config) as fresh:
                return self.run(workload, fresh)
        state = self.history.of(engine)
        self.history.begin(engine, workload)
        notes().change(subject=self.under_test, workload=workload)
        self.ledger.num_runs += 1
        can_share = may_share(workload.config, self.capabilities)
        num_records = len(self.trace_of(engine)) if can_share else 0
        with self.reporting(workload, Rule.RAISED):
            self.lab.watch.require_untouched(self.spec, self.subject)
            guard = self.lab.watch.guard(self.spec, self.subject, "while the engine worked")
            interrupt = interrupter(engine, self.oracle, workload.weights, workload.interruptions)
            with guard, self._engines_time():
                with time_limit(self.lab.time_limit_s, "load_adapter and unload_adapter"):
                    state.adapters.bring(engine, self.subject, workload)  # type: ignore[arg-type]
                self._update_weights(engine, state, workload.weights)
                outcome = serve(engine, workload, self.lab.time_limit_s, interrupt)
            self.lab.watch.require_untouched(self.spec, self.subject)
        computed: tuple[Computed, ...] = ()
        if can_share:
            records = self.trace_of(engine)[num_records:]
            prefixes = ComputedPrefixes(workload, outcome.completions, state.computed)
            computed = prefixes.note_all(records, Cuts.of(workload, outcome)).computed
        self.history.end(engine, outcome.completions, computed)
        with self.reporting(workload):
            answers = outcome.completions
            require(presence_findings(workload, answers, self.capabilities, self.promise))
        return outcome

    def _update_weights(self, engine: Engine, state: EngineState, wanted: int) -> None:
        """Makes the engine have the weights of this variant."""
        if state.weights != wanted:
            update = Interruption(0, UPDATE, wanted)
            interrupt = interrupter(engine, self.oracle, state.weights, [update])
            with time_limit(self.lab.time_limit_s, "update_weights"):
                interrupt(update)
            state.update(wanted)

    def check(self, workload: Workload, engine: Engine | None = None) -> Outcome:
        """Runs a workload of good requests as `run` does, and judges every answer and the conduct.

        Answers are compared with the oracle; events and trace are checked unless requests are
        aborted. Returns the outcome.

        Raises `ConformanceFailure` with all findings, `HangFailure` as `run` does, and `OracleError` if
        there is no right answer, which is no failure of the engine.
        """
        workload = replace(workload, config=self.fitted(workload.config))
        if engine is None:
            with self.reporting(workload, Rule.RAISED), self.engine(workload.config) as fresh:
                return self.check(workload, fresh)
        num_records = len(self.trace_of(engine))
        outcome = self.run(workload, engine)
        earlier = self.history.of(engine).computed_before
        with self.reporting(workload):
            records = self.trace_of(engine)[num_records:]
            answers = self.answer_findings(workload.requests, outcome, workload, records)
            require(chain(answers, self.conduct_findings(workload, outcome, records, earlier)))
        return outcome

    def check_answers(
        self, workload: Workload, bad: Collection[int] = (), engine: Engine | None = None
    ) -> Outcome:
        """Runs a workload as `run` does, and judges its answers as `judge` does, but not the conduct.
        Returns the outcome."""
        outcome = self.run(workload, engine)
        with self.reporting(workload):
            self.judge(workload.requests, outcome.completions, bad, workload.adapters)
        return outcome

    def check_calls(self, calls: Sequence[Workload], *events: str) -> Sequence[StepRecord]:
        """Checks calls on one fresh engine, as `check` does. Its trace, which is returned, `must_show`
        these events, of `happened.COUNTERS`."""
        with self.engine(calls[0].config) as engine:
            for call in calls:
                self.check(call, engine)
            trace = self.trace_of(engine)
        for event in events:
            self.must_show(event, happened_in(trace)[event] > 0)
        return trace

    def conduct_findings(
        self,
        workload: Workload,
        outcome: Outcome,
        records: Sequence[StepRecord],
        earlier: Sequence[Computed] = (),
    ) -> Iterator[Finding]:
        """Yields what `batchproof.checks.conduct` finds in a run of this engine on this model, and
        counts what its records show."""
        if Capability.TRACING in self.capabilities:
            self.ledger.count(happened_in(records))
        known = self.capabilities, earlier, self.scheduling_delay, self.subject.reach
        return conduct_findings(workload, outcome, records, *known)

    def trace_of(self, engine: Engine) -> Sequence[StepRecord]:
        """Returns the engine's records since it was built; empty without the capability."""
        has_trace = Capability.TRACING in self.capabilities
        with self.reporting(self.history.last_workload, Rule.RAISED):
            return checked_trace(engine.trace) if has_trace else ()  # type: ignore[attr-defined]

    def must_show(self, what: str, did_happen: bool) -> None:
        """Notes whether a trace shows `what`, the event that the test is about.

        The test fails if none of its examples shows it, because then it proves nothing. For an engine
        without a trace, or where it is its `OWN_CHOICE`, the summary says that it is not shown.
        """
        if Capability.TRACING not in self.capabilities:
            self.ledger.note_item(f"{self.spec.name} has no trace; not shown to have happened", what)
            return
        self.has_happened[what] = self.has_happened.get(what, False) or did_happen

    def note_unshown(self) -> None:
        """Notes what no example has shown although it could, once all have run."""
        for what, did_happen in self.has_happened.items():
            if what in OWN_CHOICE and not did_happen:
                self.ledger.note_item(f"{self.spec.name} may do without, and has not shown", what)

    def judge(
        self,
        requests: Sequence[Request],
        given: Sequence[Completion],
        bad: Collection[int] = (),
        adapters: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Compares the completions with the right answers, under these adapters, and counts them; the
        requests at the places `bad` must be refused. Raises `BrokenPromise`, and `OracleError`."""
        if bad and len(given) != len(requests):
            raise broken(Rule.COUNT, num_requests=len(requests), num_completions=len(given))
        refused = (refusal_findings(given[each], requests[each], self.ledger) for each in bad)
        good = [request for place, request in enumerate(requests) if place not in bad]
        answers = tuple(each for place, each in enumerate(given) if place not in bad)
        under = Workload((), adapters=tuple(adapters))
        require(chain(*refused, self.answer_findings(good, Outcome(answers), under)))

    def answer_findings(
        self,
        requests: Sequence[Request],
        outcome: Outcome,
        workload: Workload,
        records: Sequence[StepRecord] = (),
    ) -> Iterator[Finding]:
        """Yields what is wrong with the answers to good requests of the workload, under its adapters
        and weights. `records` is what the workload has added to the trace."""
        under = partial(self.oracle.under, workload.adapters)
        if not workload.is_interrupted:
            oracle = under(workload.updates[-1].weights)
            yield from completion_findings(requests, outcome.completions, oracle, self.ledger)
            return
        pairs = [*zip(requests, outcome.completions, strict=True)]
        of_state: dict[int, list[Part]] = {}
        for part in parts(pairs, workload, outcome, records, under):
            of_state.setdefault(part.weights, []).append(part)
        for weights, own in of_state.items():
            asked, given = [each.request for each in own], [each.completion for each in own]
            yield from completion_findings(asked, given, under(weights), self.ledger)

    @contextmanager
    def reporting(self, workload: Workload, rule: Rule = Rule.UNREADABLE) -> Iterator[None]:
        """Turns what goes wrong inside the block into a failure that names engine, model and workload.

        `rule` is the rule that an exception of any other kind breaks. Raises `ConformanceFailure`,
        `HangFailure`, and `OracleError`, which is no failure of the engine.
        """
        try:
            with contained():
                yield
        except (ConformanceFailure, HangFailure, OracleError):
            raise
        except BrokenPromise as error:
            failure = self.failure(error.finding, workload, others=error.others)
            raise ConformanceFailure(failure) from None
        except EngineHang as hang:
            at = raised_at(hang)
            finding = found(Rule.HANG, what=hang.what, evidence=hang.evidence, at=at)
            raise HangFailure(self.failure(finding, workload)) from None
        except Exception as error:
            facts: Facts = {"error": type(error).__name__, "message": str(error)}
            facts |= {"frames": last_frames(error), "notes": notes_of(error), "at": raised_at(error)}
            finding = found(rule, promise=self.promise, **facts)
            error.__traceback__ = None  # of a recursion it is long, and Hypothesis formats it
            raise ConformanceFailure(self.failure(finding, workload)) from None

    def failure(
        self,
        finding: Finding,
        workload: Workload | None = None,
        scene: Scene | None = None,
        others: tuple[Finding, ...] = (),
    ) -> Failure:
        """Returns the failure of a finding. Its runs are those of `scene`, else those up to the
        workload or the last run."""
        if workload is None:
            workload = self.history.last_workload
        scene = scene or self.history.scene_of_workload(workload)
        self.last_failure = Failure(finding, scene, self.under_test, others=others)
        return self.last_failure

    @property
    def under_test(self) -> Subject:
        return subject_of(self.spec, self.oracle, self.ledger.release)


def subject_of(spec: EngineSpec, oracle: Oracle, release: str | None = None) -> Subject:
    model = oracle.subject
    place = (model.model.device.type, model.dtype_name, str(oracle.precision))
    return Subject(spec.name, release, model.name, *place)
