"""Reruns the workloads of a failure on fresh engines, unchanged or with one thing changed, and finds
what changes a wrong answer: no neighbours, other neighbours, other limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain

import torch

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    StepRecord,
)
from batchproof.checks.answers import of_each, slack, structure_findings
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.trace import accounting_findings, position_findings
from batchproof.diagnosis.counterfactual import plain_schedule
from batchproof.errors import EngineHang
from batchproof.findings.causes import Cause
from batchproof.findings.finding import Finding
from batchproof.oracle.choosing import is_drawn, processed, sampling_of
from batchproof.oracle.oracle import Oracle, centred
from batchproof.run.serving import serve
from batchproof.run.time_limit import time_limit
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

RERUN_TIME_LIMIT_S = 5.0
HANG_TIME_LIMIT_S = 1.0


class OutOfTimeError(Exception):
    """Raised when the diagnosis has used up its time."""


@dataclass(frozen=True, slots=True)
class Call:
    """One workload of a rerun, its completions, and the part of the trace that it added."""

    workload: Workload
    completions: tuple[Completion, ...]
    trace: tuple[StepRecord, ...]

    def completion(self, request_id: str) -> Completion | None:
        return next((c for c in self.completions if c.request_id == request_id), None)

    def schedule(self) -> Sequence[StepRecord]:
        """Returns the trace, or the simplest schedule within the limits if there is none."""
        return self.trace or plain_schedule(self.workload, self.completions)


class Rerunner:
    """Runs workloads on fresh engines until `seconds` have passed."""

    def __init__(self, trial: Trial, seconds: float) -> None:
        self.trial = trial
        self._end = time.monotonic() + seconds

    def check_time(self) -> None:
        """Raises `OutOfTimeError` once the time is used up."""
        if time.monotonic() > self._end:
            raise OutOfTimeError

    def run(self, calls: Sequence[Workload], seconds: float = RERUN_TIME_LIMIT_S) -> list[Call] | None:
        """Runs all workloads on one fresh engine.

        Returns one `Call` for each; None if the engine hangs for `seconds`, raises or returns something
        unreadable. Raises `OutOfTimeError`.
        """
        self.check_time()
        config = replace(calls[-1].config, return_logits=self.trial.has_logits)
        try:
            engine = self._build(config)
            try:
                return [self._call(engine, each, seconds) for each in calls]
            finally:
                self.trial.close(engine)
        except (EngineHang, Exception):
            return None

    def conduct_up_to_hang(self, calls: Sequence[Workload]) -> Finding | None:
        """Returns the first rule of the trace that is broken before the last call hangs.

        Returns None if no call hangs, no rule is broken, or the engine has no trace. Raises
        `OutOfTimeError`.
        """
        self.check_time()
        if Capability.TRACING not in self.trial.capabilities:
            return None
        engine: Engine | None = None
        num_before = 0
        earlier: list[Computed] = []
        try:
            engine = self._build(calls[-1].config)
            for each in calls:
                num_before = len(self._trace(engine))
                outcome = serve(engine, each, HANG_TIME_LIMIT_S)
                done = ComputedPrefixes(each, outcome.completions)
                earlier += done.note_all(self._trace(engine)[num_before:]).computed
            return None
        except EngineHang:
            if engine is None:
                return None
        except Exception:
            return None
        records = self._trace(engine)[num_before:]
        can_share = may_share(calls[-1].config, self.trial.capabilities)
        prefixes = ComputedPrefixes(calls[-1], (), earlier) if can_share else None
        checks = (
            position_findings(records, calls[-1], prefixes),
            accounting_findings(records, calls[-1], is_idle_at_end=False),
        )
        try:
            return next(chain.from_iterable(checks), None)
        except BrokenPromise as broken:  # an id that no request has
            return broken.finding

    def _build(self, config: EngineConfig) -> Engine:
        with time_limit(RERUN_TIME_LIMIT_S, "building the engine"):
            return self.trial.spec.factory(self.trial.subject.model, config)

    def _call(self, engine: Engine, workload: Workload, seconds: float) -> Call:
        num_before = len(self._trace(engine))
        outcome = serve(engine, workload, seconds)
        return Call(workload, outcome.completions, tuple(self._trace(engine))[num_before:])

    def _trace(self, engine: Engine) -> Sequence[StepRecord]:
        has_trace = Capability.TRACING in self.trial.capabilities
        return engine.trace if has_trace else ()  # type: ignore[attr-defined]


def same_answer(a: Completion | None, b: Completion | None) -> bool:
    """Returns whether two answers are equal, their logits bit for bit where both have some."""
    if a is None or b is None:
        return a is b
    if (a.token_ids, a.finish_reason) != (b.token_ids, b.finish_reason):
        return False
    if a.logits is None or b.logits is None:
        return True
    is_alike = a.logits.shape == b.logits.shape
    return is_alike and torch.allclose(a.logits, b.logits, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True, slots=True)
class Symptom:
    """A wrong answer; `step` is its first wrong output."""

    call: int
    request: Request
    step: int
    is_content: bool  # wrong tokens or logits, as against a wrong length or finish reason


def is_bad(request: Request, oracle: Oracle) -> bool:
    return Limits.of(oracle.subject.model, EngineConfig()).refusal(request) is not None


def symptoms_of(calls: Sequence[Call], oracle: Oracle) -> list[Symptom]:
    """Returns every wrong answer, in the order of calls and requests."""
    found = []
    for number, call in enumerate(calls):
        completions = {each.request_id: each for each in call.completions}
        for request in call.workload.requests:
            completion = completions.get(request.request_id)
            symptom = completion and _symptom(number, request, completion, oracle)
            if symptom:
                found.append(symptom)
    return found


def _symptom(call: int, request: Request, completion: Completion, oracle: Oracle) -> Symptom | None:
    has_answer = oracle.subject.has_answer(request.prompt_token_ids) and not is_bad(request, oracle)
    if completion.finish_reason is FinishReason.ERROR or not has_answer or is_drawn(request):
        return None
    wrong = _first_wrong(request, completion, oracle)
    if wrong is not None:
        return Symptom(call, request, wrong, is_content=True)
    is_aborted = completion.finish_reason is FinishReason.ABORTED
    if not is_aborted and _ends_wrongly(request, completion):
        step = min(len(completion.token_ids), request.max_new_tokens)
        return Symptom(call, request, step, is_content=False)
    return None


def _first_wrong(request: Request, completion: Completion, oracle: Oracle) -> int | None:
    """Returns the first output whose token or logits are further from those of float64 than rounding
    reaches."""
    tokens = tuple(completion.token_ids)[: request.max_new_tokens]
    is_known = [0 <= token < oracle.subject.vocab_size for token in tokens]
    known = tokens[: is_known.index(False)] if False in is_known else tokens
    if known:
        exact = oracle.score(request.prompt_token_ids, known)
        choices = processed(exact, request, known)
        regret = choices.amax(dim=-1) - of_each(choices, known)
        is_constructed = oracle.subject.oracle is not None
        is_exact = is_constructed and not sampling_of(request).changes_logits
        bound = 0.0 if is_exact else 2 * slack(request, oracle)
        is_off = ~(regret <= bound)
        logits = completion.logits
        if logits is not None and tuple(logits.shape) == (len(completion.token_ids), exact.shape[1]):
            moved = (centred(logits)[: len(known)] - centred(exact)).abs().amax(dim=-1)
            is_off |= ~(moved <= oracle.logit_bound)
        if bool(is_off.any()):
            return int(is_off.nonzero()[0])
    return len(known) if known != tokens else None


def _ends_wrongly(request: Request, completion: Completion) -> bool:
    logits, tokens = completion.logits, completion.token_ids
    if any(structure_findings(request, completion)):
        return True
    return logits is not None and len(logits) != len(tokens)


FEWEST_HALVED = 8  # tokens
NUM_REWRITTEN = 6  # requests whose contents are rewritten, one at a time


class Without(Enum):
    """What a rerun leaves out, in words of the report."""

    NEIGHBOURS = "alone on a fresh engine"
    HISTORY = "on a fresh engine, without the calls before"
    ABORTS = "with nothing aborted"
    BAD_REQUESTS = "without the bad request"
    PREFIX_CACHE = "with prefix caching off"
    PREEMPTIONS = "with a pool that never runs full"
    CHUNKS = "with a budget that holds whole prompts"


# What it shows if the answer is right without it, the most certain first.
SHOWN = {
    Without.PREFIX_CACHE: (Cause.STALE, "it is right while nothing is taken over from a prefix cache"),
    Without.HISTORY: (Cause.STALE, "an earlier call changes the answer"),
    Without.ABORTS: (Cause.CANCEL, "an abort of another request changes the answer"),
    Without.BAD_REQUESTS: (Cause.INPUT, "a bad request beside it changes the answer"),
    Without.PREEMPTIONS: (Cause.PREEMPTION, "it is right while nothing is preempted"),
    Without.CHUNKS: (Cause.CHUNK, "it is right while no prompt is fed in parts"),
}


@dataclass
class Reruns:
    """What the reruns show, as values and as `facts` for the report.

    A value of None, or no entry, means that the rerun does not apply or did not finish.
    """

    is_repeatable: bool | None = None
    is_right: dict[Without, bool | None] = field(default_factory=dict)
    movers: list[str] = field(default_factory=list)  # neighbours whose contents move the answer
    facts: list[str] = field(default_factory=list)


def rerun(rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom) -> Reruns:
    """Reruns the calls, each time on a fresh engine, first unchanged and then with one thing changed.

    Raises `OutOfTimeError`.
    """
    found = Reruns()
    case = _Case(rerunner, calls, symptom, found)
    again = rerunner.run(case.workloads)
    if again is not None:
        was, now = (
            each[symptom.call].completion(symptom.request.request_id) for each in (calls, again)
        )
        found.is_repeatable = same_answer(was, now)
        if not found.is_repeatable:
            found.facts.append("the same calls on another fresh engine: answered differently")
    for without, workloads in _changes(case):
        found.is_right[without] = case.is_right(without.value, workloads)
    has_others = any(r is not symptom.request for r in case.here.requests)
    if has_others and found.is_right[Without.NEIGHBOURS] is not False:
        _rewrite(case)
    return found


def _changes(case: _Case) -> Iterator[tuple[Without, list[Workload]]]:
    here, workloads, symptom = case.here, case.workloads, case.symptom
    trial, config = case.rerunner.trial, workloads[-1].config
    yield Without.NEIGHBOURS, [_only(here, symptom.request)]
    if symptom.call:
        yield Without.HISTORY, [here]
    if here.aborts:
        yield Without.ABORTS, case.with_call(replace(here, aborts=()))
    good = [r for r in here.requests if not is_bad(r, trial.oracle)]
    if len(good) < len(here.requests):
        yield Without.BAD_REQUESTS, case.with_call(here.with_requests(good))
    if may_share(config, trial.capabilities):
        yield Without.PREFIX_CACHE, case.with_config(prefix_caching=False)
    if Capability.PREEMPTION in trial.capabilities and config.num_blocks is not None:
        yield Without.PREEMPTIONS, case.with_config(num_blocks=None)
    longest = max((len(r.prompt_token_ids) for w in workloads for r in w.requests), default=0)
    has_chunks = Capability.CHUNKED_PREFILL in trial.capabilities
    if has_chunks and config.max_num_batched_tokens < 4 * longest:
        roomy = EngineConfig().max_num_batched_tokens
        yield Without.CHUNKS, case.with_config(max_num_batched_tokens=roomy)


def is_right_without_drafts(rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom) -> bool | None:
    """Returns whether the request is answered rightly if nothing is drafted; None if nothing was.

    Raises `OutOfTimeError`.
    """
    if not calls[-1].workload.config.num_speculative_tokens:
        return None
    case = _Case(rerunner, calls, symptom, Reruns())
    plain = case.with_config(num_speculative_tokens=None, draft_agreement=None)
    return case.is_right("without speculation", plain)


def shows_with_half(
    rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom, found: Reruns
) -> bool | None:
    """Returns whether half of the tokens before the wrong output, alone, are answered wrongly as well,
    as low precision would have it; None where there are too few. Adds to the facts."""
    half = (len(symptom.request.prompt_token_ids) + symptom.step) // 2
    prompt = symptom.request.prompt_token_ids[:half]
    if half < FEWEST_HALVED:
        return None
    short = replace(symptom.request, prompt_token_ids=prompt, max_new_tokens=3 + half - len(prompt))
    try:
        again = rerunner.run([_only(calls[symptom.call].workload, short)])
    except OutOfTimeError:
        return None
    if again is None:
        return None
    is_wrong = bool(symptoms_of(again, rerunner.trial.oracle))
    found.facts.append(f"alone with half of its context: {'wrong as well' if is_wrong else 'right'}")
    return is_wrong


@dataclass(frozen=True)
class _Case:
    rerunner: Rerunner
    calls: Sequence[Call]
    symptom: Symptom
    found: Reruns

    @property
    def workloads(self) -> list[Workload]:
        return [call.workload for call in self.calls]

    @property
    def here(self) -> Workload:
        return self.calls[self.symptom.call].workload

    def with_call(self, new: Workload) -> list[Workload]:
        return [new if number == self.symptom.call else w for number, w in enumerate(self.workloads)]

    def with_config(self, **changes: object) -> list[Workload]:
        return [each.with_config(**changes) for each in self.workloads]

    def is_right(self, words: str, workloads: Sequence[Workload]) -> bool | None:
        """Returns whether the request is answered rightly in its call, or in the last one if there are
        fewer calls."""
        calls = self.rerunner.run(workloads)
        if calls is None:
            return None
        number = min(self.symptom.call, len(calls) - 1)
        symptoms = symptoms_of(calls, self.rerunner.trial.oracle)
        wrong = [symptom for symptom in symptoms if symptom.call == number]
        is_right = all(s.request.request_id != self.symptom.request.request_id for s in wrong)
        self.found.facts.append(f"{words}: {'right' if is_right else 'wrong as well'}")
        return is_right


def _only(workload: Workload, request: Request) -> Workload:
    arrivals = None if workload.arrivals is None else (0,)
    return replace(workload, requests=(request,), arrivals=arrivals, aborts=())


def _rewrite(case: _Case) -> None:
    """Rewrites each neighbour at the same length and notes whose contents change the answer."""
    here, symptom, found = case.here, case.symptom, case.found
    vocab_size = case.rerunner.trial.subject.vocab_size
    was = case.calls[symptom.call].completion(symptom.request.request_id)
    for number, request in enumerate(here.requests[:NUM_REWRITTEN]):
        if request is symptom.request or not request.prompt_token_ids:
            continue
        shifted = tuple((token + 1) % vocab_size for token in request.prompt_token_ids)
        rewritten = list(here.requests)
        rewritten[number] = replace(request, prompt_token_ids=shifted, eos_token_ids=frozenset())
        calls = case.rerunner.run(case.with_call(here.with_requests(rewritten)))
        now = calls and calls[symptom.call].completion(symptom.request.request_id)
        if calls is not None and not same_answer(was, now or None):
            found.movers.append(request.request_id)
    if found.movers:
        names = ", ".join(map(repr, found.movers))
        found.facts.append(f"rewriting the contents of {names} changes it")
    else:
        found.facts.append("rewriting the neighbours' contents does not change it")


def cause_by_reruns(found: Reruns, symptom: Symptom, calls: Sequence[Call]) -> tuple[Cause, str] | None:
    """Returns the cause that the reruns alone suggest, and why, or None.

    Used where no mistake of the list explains the answer.
    """
    if found.is_repeatable is False:
        return Cause.RACE, "the same calls give different answers"
    for without, shown in SHOWN.items():
        if found.is_right.get(without):
            return shown
    if found.is_right.get(Without.NEIGHBOURS) and found.movers:
        return _leak_or_stale(found, symptom, calls)
    return None


def _leak_or_stale(found: Reruns, symptom: Symptom, calls: Sequence[Call]) -> tuple[Cause, str]:
    """Decides by the trace whether they shared a step or the neighbour had left before."""
    own = symptom.request.request_id
    steps: dict[str, list[int]] = {}
    for number, record in enumerate(calls[symptom.call].schedule()):
        for row in record.rows:
            steps.setdefault(row.request_id, []).append(number)
    here = steps.get(own, [])
    live = [name for name in found.movers if not set(here).isdisjoint(steps.get(name, ()))]
    if live:
        return Cause.LEAK, f"its answer follows the contents of {', '.join(map(repr, live))}, beside it"
    names = f"its answer follows the contents of {', '.join(map(repr, found.movers))}"
    if here and any(steps.get(name, here)[0] > here[-1] for name in found.movers):
        return Cause.LEAK, f"{names}, which was to come later"
    return Cause.STALE, f"{names}, which had left before"
