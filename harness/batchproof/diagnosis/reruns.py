"""Reruns the workloads of a failure on fresh engines, unchanged or with one thing changed, and finds
what changes a wrong answer: no neighbours, other neighbours, other limits."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile
from typing import TypeVar

import torch

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    StepRecord,
    TokenEvent,
)
from batchproof.checks.answers import of_each, slack, structure_findings
from batchproof.diagnosis.schedules import plain_events, schedule_of_events
from batchproof.errors import EngineHang
from batchproof.findings.causes import Cause
from batchproof.findings.finding import Failure, Scene
from batchproof.oracle.choosing import is_drawn, is_malformed, is_plain, processed, sampling_of
from batchproof.oracle.oracle import Oracle, centred
from batchproof.run.adapting import LoadedAdapters
from batchproof.run.serving import serve
from batchproof.run.time_limit import time_limit
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

RERUN_TIME_LIMIT_S = 5.0
Value = TypeVar("Value")


class OutOfTimeError(Exception):
    """Raised when the diagnosis has used up its time."""


@dataclass(frozen=True, slots=True)
class Call:
    """One workload of a rerun, its completions, and the part of the trace that it added."""

    workload: Workload
    completions: tuple[Completion, ...]
    trace: tuple[StepRecord, ...]
    events: tuple[tuple[int, TokenEvent], ...] = ()

    def completion(self, request_id: str) -> Completion | None:
        return next((c for c in self.completions if c.request_id == request_id), None)

    def schedule(self) -> Sequence[StepRecord]:
        """Returns the trace, else what events show, else the simplest schedule within the limits."""
        events = self.events or plain_events(self.workload, self.completions)
        return self.trace or schedule_of_events(self.workload, events)


class Rerunner:
    """Runs workloads on fresh engines until `seconds` have passed."""

    def __init__(self, trial: Trial, seconds: float) -> None:
        self.trial = trial
        self._end = time.monotonic() + seconds

    def in_time(self, values: Iterable[Value]) -> Iterator[Value]:
        """Yields the values until the time is used up."""
        return takewhile(lambda _: time.monotonic() <= self._end, values)

    def reruns(self, scene: Scene) -> Iterator[list[Call]]:
        """Yields the failed runs again, first through `generate`, which can return logits, then the
        runs that they were compared with. Of drafts only events show an engine's steps, if it has no
        trace."""
        can = self.trial.capabilities
        for runs in (scene.runs, scene.other):
            given = [run.workload for run in runs]
            ways = [given] if given else []
            if any(each.config.num_speculative_tokens for each in given) and not (
                Capability.TRACING in can or Capability.STEPPING not in can
            ):
                ways = [[replace(w, arrivals=w.arrivals or (0,) * len(w.requests)) for w in given]]
            elif any(w.needs_stepping for w in given) and not any(w.aborts for w in given):
                ways = [[each.together() for each in given], given]
            for workloads in ways:
                calls = self.run(workloads)
                if calls is not None:
                    yield calls

    def run(self, calls: Sequence[Workload], seconds: float = RERUN_TIME_LIMIT_S) -> list[Call] | None:
        """Runs all workloads on one fresh engine. Returns one `Call` for each; None if the engine hangs
        for `seconds`, raises or returns something unreadable. Raises `OutOfTimeError`."""
        if time.monotonic() > self._end:
            raise OutOfTimeError
        trial, done, loaded = self.trial, list[Call](), LoadedAdapters()
        config = replace(calls[-1].config, return_logits=trial.has_logits)
        try:
            with time_limit(RERUN_TIME_LIMIT_S, "building the engine"):
                engine = trial.spec.factory(trial.subject.model, config)
            try:
                for each in calls:
                    num_before = len(trial.trace_of(engine))
                    loaded.bring(engine, trial.subject, each)  # type: ignore[arg-type]
                    outcome = serve(engine, each, seconds)
                    trace = tuple(trial.trace_of(engine))[num_before:]
                    done.append(Call(each, outcome.completions, trace, outcome.events))
            finally:
                trial.close(engine)
        except (EngineHang, Exception):
            return None
        return done


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


SymptomsOf = Callable[[Sequence[Call], Oracle], list[Symptom]]


def is_bad(request: Request, oracle: Oracle) -> bool:
    """Returns whether the request must be refused; the oracle is under the adapters of its call."""
    limits = Limits.of(oracle.subject.model, EngineConfig())
    return limits.refusal(request) is not None or not oracle.knows(request) or is_malformed(request)


def good_requests(workload: Workload, oracle: Oracle) -> list[Request]:
    """Returns the requests that need not be refused: the first of each id, unless it is bad."""
    first = {each.request_id: each for each in reversed(workload.requests)}.values()
    under = oracle.under(workload.adapters)
    return [r for r in workload.requests if any(r is each for each in first) and not is_bad(r, under)]


def symptoms_of(calls: Sequence[Call], oracle: Oracle) -> list[Symptom]:
    """Returns every wrong answer, in the order of calls and requests."""
    found = []
    for number, call in enumerate(calls):
        completions = {each.request_id: each for each in call.completions}
        under = oracle.under(call.workload.adapters)
        for request in call.workload.requests:
            completion = completions.get(request.request_id)
            symptom = completion and _symptom(number, request, completion, under)
            if symptom:
                found.append(symptom)
    return found


def _symptom(call: int, request: Request, completion: Completion, oracle: Oracle) -> Symptom | None:
    has_answer = oracle.subject.has_answer(request.prompt_token_ids) and not is_bad(request, oracle)
    if completion.finish_reason is FinishReason.ERROR or not has_answer:
        return None
    own = oracle.of(request)
    wrong = None if is_drawn(request) else _first_wrong(request, completion, own)
    if wrong is not None:
        return Symptom(call, request, wrong, is_content=True)
    logits, tokens = completion.logits, completion.token_ids
    ends_wrongly = any(structure_findings(request, completion)) or (
        logits is not None and len(logits) != len(tokens)
    )
    if ends_wrongly and completion.finish_reason is not FinishReason.ABORTED:
        return Symptom(call, request, min(len(tokens), request.max_new_tokens), is_content=False)
    return None


def _first_wrong(request: Request, completion: Completion, oracle: Oracle) -> int | None:
    """Returns the first output whose token or logits are further from float64 than rounding reaches."""
    tokens = tuple(completion.token_ids)[: request.max_new_tokens]
    known = tuple(takewhile(lambda token: 0 <= token < oracle.subject.vocab_size, tokens))
    if known:
        exact = oracle.score(request.prompt_token_ids, known)
        choices = processed(exact, request, known)
        is_constructed = oracle.subject.oracle is not None
        is_exact = is_constructed and is_plain(request)
        bound = 0.0 if is_exact else 2 * slack(request, oracle)
        is_right = choices.amax(dim=-1) - of_each(choices, known) <= bound
        logits = completion.logits
        if logits is not None and tuple(logits.shape) == (len(completion.token_ids), exact.shape[1]):
            moved = (centred(logits)[: len(known)] - centred(exact)).abs().amax(dim=-1)
            is_right &= moved <= oracle.logit_bound
        if not bool(is_right.all()):  # a NaN is wrong
            return int((~is_right).nonzero()[0])
    return len(known) if known != tokens else None


MORE = 8  # tokens of an answer
NUM_REWRITTEN = 6  # requests whose contents are rewritten, one at a time
MANY = 128  # requests


class Without(Enum):
    """What a rerun leaves out, in words of the report."""

    DRAFTS = "without speculation"
    NEIGHBOURS = "alone on a fresh engine"
    ADAPTERS = "with no adapter asked for"
    HISTORY = "on a fresh engine, without the calls before"
    ABORTS = "with nothing aborted"
    BAD_REQUESTS = "without the bad request"
    PREFIX_CACHE = "with prefix caching off"
    PREEMPTIONS = "with a pool that never runs full"
    CHUNKS = "with a budget that holds whole prompts"
    PARAMETERS = "with neighbours that ask for no parameters"
    SLOTS = "with a slot for each request"
    DEPARTURES = "with neighbours that stay to its end"


# What it shows if the answer is right without it, the most certain first.
SHOWN = {
    Without.DRAFTS: (Cause.SPECULATION, "it is right without speculation"),
    Without.ADAPTERS: (Cause.ADAPTER, "it is right while no request names an adapter"),
    Without.PREFIX_CACHE: (Cause.STALE, "it is right while nothing is taken over from a prefix cache"),
    Without.HISTORY: (Cause.STALE, "an earlier call changes the answer"),
    Without.ABORTS: (Cause.CANCEL, "an abort of another request changes the answer"),
    Without.BAD_REQUESTS: (Cause.INPUT, "a bad request beside it changes the answer"),
    Without.PREEMPTIONS: (Cause.PREEMPTION, "it is right while nothing is preempted"),
    Without.CHUNKS: (Cause.CHUNK, "it is right while no prompt is fed in parts"),
    Without.PARAMETERS: (Cause.SAMPLING, "what its neighbours ask for changes the answer"),
    Without.SLOTS: (Cause.STALE, "it is right while no slot is used again and no one waits"),
    Without.DEPARTURES: (Cause.STALE, "it is right while no other request leaves before it"),
}
NUM_DRAWS = 4
OF_PLACES = {Without.SLOTS, Without.DEPARTURES}  # what a neighbour says, if that matters, tells more


@dataclass
class Reruns:
    """Reruns of a wrong answer, each on a fresh engine with one thing changed, and what they show: as
    values, and as `facts` for the report.

    A value of None, or no entry, means that the rerun does not apply or did not finish. All that reruns
    raises `OutOfTimeError`, unless it says otherwise.
    """

    rerunner: Rerunner
    calls: Sequence[Call]
    symptom: Symptom
    is_repeatable: bool | None = None
    is_right: dict[Without, bool | None] = field(default_factory=dict)
    movers: list[str] | None = None  # neighbours whose contents move the answer
    facts: list[str] = field(default_factory=list)
    symptoms_of: SymptomsOf = symptoms_of
    reran: list[list[Call]] = field(default_factory=list)

    @property
    def workloads(self) -> list[Workload]:
        return [call.workload for call in self.calls]

    @property
    def here(self) -> Workload:
        return self.calls[self.symptom.call].workload

    @property
    def has_many(self) -> bool:
        """Whether it is rather their number that matters than what each of the requests says."""
        return sum(len(each.requests) for each in self.workloads) > MANY

    def answer_in(self, calls: Sequence[Call]) -> Completion | None:
        return calls[self.symptom.call].completion(self.symptom.request.request_id)

    def run(self) -> None:
        """Reruns the calls, first unchanged and then with each thing changed."""
        again = self.rerunner.run(self.workloads)
        if again is not None:
            self.is_repeatable = same_answer(self.answer_in(self.calls), self.answer_in(again))
            if not self.is_repeatable:
                self.facts.append("the same calls on another fresh engine: answered differently")
        self.change()
        has_others = any(r is not self.symptom.request for r in self.here.requests)
        if has_others and not self.has_many and self.is_right[Without.NEIGHBOURS] is not False:
            self._rewrite()

    def change(self) -> None:
        """Reruns the calls with each thing changed, but for the neighbours' contents."""
        for without, workloads in self._changes():
            if without not in self.is_right:
                self.is_right[without] = self._is_right(without.value, workloads)

    def _changes(self) -> Iterator[tuple[Without, list[Workload]]]:
        here, workloads, trial = self.here, self.workloads, self.rerunner.trial
        config = workloads[-1].config
        if config.num_speculative_tokens:
            plain = self._with_config(num_speculative_tokens=None, draft_agreement=None)
            yield Without.DRAFTS, plain
        yield Without.NEIGHBOURS, [only(here, self.symptom.request)]
        if any(request.adapter for each in workloads for request in each.requests):
            yield Without.ADAPTERS, [_unadapted(each) for each in workloads]
        if self.symptom.call:
            yield Without.HISTORY, [here]
        if here.aborts:
            yield Without.ABORTS, self._with_call(replace(here, aborts=()))
        good = good_requests(here, trial.oracle)
        if len(good) < len(here.requests):
            yield Without.BAD_REQUESTS, self._with_call(here.with_requests(good))
        if config.prefix_caching:  # an engine may do it unasked
            yield Without.PREFIX_CACHE, self._with_config(prefix_caching=False)
        if config.num_blocks is not None:
            yield Without.PREEMPTIONS, self._with_config(num_blocks=None)
        longest = max((len(r.prompt_token_ids) for w in workloads for r in w.requests), default=0)
        has_chunks = Capability.CHUNKED_PREFILL in trial.capabilities
        if has_chunks and config.max_num_batched_tokens < 4 * longest:
            roomy = EngineConfig().max_num_batched_tokens
            yield Without.CHUNKS, self._with_config(max_num_batched_tokens=roomy)
        if len(here.requests) > 1 and not self.has_many:
            yield from self._changes_of_neighbours()

    def _changes_of_neighbours(self) -> Iterator[tuple[Without, list[Workload]]]:
        here, own = self.here, self.symptom.request
        others = [each for each in here.requests if each is not own]
        if any(each.sampling for each in others):
            plain = [each if each is own else replace(each, sampling=None) for each in here.requests]
            yield Without.PARAMETERS, self._with_call(here.with_requests(plain))
        if here.config.max_num_seqs < len(here.requests):
            num = len(here.requests)
            budget = max(num, here.config.max_num_batched_tokens)
            changes = {"max_num_seqs": num, "max_num_batched_tokens": budget}
            yield Without.SLOTS, self._with_config(**changes)
        room = self.rerunner.trial.subject.context_len
        staying = [each if each is own else _staying(each, own, room) for each in here.requests]
        if any(each.max_new_tokens <= own.max_new_tokens for each in others):
            yield Without.DEPARTURES, self._with_call(here.with_requests(staying))

    def _with_call(self, new: Workload) -> list[Workload]:
        return [new if number == self.symptom.call else w for number, w in enumerate(self.workloads)]

    def _with_config(self, **changes: object) -> list[Workload]:
        return [each.with_config(**changes) for each in self.workloads]

    def _is_right(self, words: str, workloads: Sequence[Workload]) -> bool | None:
        """Returns whether the request is answered rightly in its call, or in the last one if there are
        fewer calls. Draws without a seed may be right by chance, and are so every time only if they
        should."""
        place = min(self.symptom.call, len(workloads) - 1), self.symptom.request.request_id
        is_by_chance = is_drawn(self.symptom.request) and sampling_of(self.symptom.request).seed is None
        for _ in range(NUM_DRAWS if is_by_chance else 1):
            calls = self.rerunner.run(workloads)
            if calls is None:
                return None
            symptoms = self.symptoms_of(calls, self.rerunner.trial.oracle)
            self.reran.append(calls)
            is_right = all((s.call, s.request.request_id) != place for s in symptoms)
            if not is_right:
                break
        self.facts.append(f"{words}: {'right' if is_right else 'wrong as well'}")
        return is_right

    def with_longer_answers(self) -> list[list[Call]]:
        """Returns the calls with caps that leave more to explain, if they end."""
        room = self.rerunner.trial.subject.context_len
        longer = [
            each.with_requests([_longer(r, room - len(r.prompt_token_ids)) for r in each.requests])
            for each in self.workloads
        ]
        calls = self.rerunner.run(longer)
        return [] if calls is None else [calls]

    def with_more_tokens(self) -> list[Call] | None:
        """Returns the calls with a longer answer to this request alone, if the same token is wrong."""
        here, own, oracle = self.here, self.symptom.request, self.rerunner.trial.oracle
        room = Limits.of(oracle.subject.model, here.config).max_model_len - len(own.prompt_token_ids)
        longer = replace(_longer(own, room), eos_token_ids=frozenset())
        asked = here.with_requests([longer if each is own else each for each in here.requests])
        calls = self.rerunner.run(self._with_call(asked))
        place = self.symptom.call, own.request_id, self.symptom.step
        found = self.symptoms_of(calls, oracle) if calls else ()
        is_same = any((each.call, each.request.request_id, each.step) == place for each in found)
        return calls if is_same else None

    def _rewrite(self) -> None:
        """Rewrites each neighbour at the same length and notes whose contents change the answer."""
        here, vocab_size = self.here, self.rerunner.trial.subject.vocab_size
        self.movers = []
        for number, request in enumerate(here.requests[:NUM_REWRITTEN]):
            if request is self.symptom.request or not request.prompt_token_ids:
                continue
            shifted = tuple((token + 1) % vocab_size for token in request.prompt_token_ids)
            rewritten = list(here.requests)
            rewritten[number] = replace(request, prompt_token_ids=shifted, eos_token_ids=frozenset())
            calls = self.rerunner.run(self._with_call(here.with_requests(rewritten)))
            if calls is not None and not same_answer(self.answer_in(self.calls), self.answer_in(calls)):
                self.movers.append(request.request_id)
        names = ", ".join(map(repr, self.movers))
        self.facts.append(
            f"rewriting the contents of {names} changes it"
            if names
            else "rewriting the neighbours' contents does not change it"
        )

    def needs_drafts(self) -> bool:
        """Returns whether the answer is right if nothing is drafted, and something was."""
        without, workloads = next(self._changes())
        if without is Without.DRAFTS:
            self.is_right[without] = self._is_right(without.value, workloads)
        return bool(self.is_right.get(Without.DRAFTS))

    def needs(self) -> list[str]:
        """Returns without what the answer is right, the most certain first."""
        return [each.value for each in SHOWN if self.is_right.get(each)]

    def cause(self) -> tuple[Cause, str] | None:
        """Returns the cause that the reruns alone suggest, and why, or None. Reruns nothing."""
        right = [each for each in SHOWN if self.is_right.get(each)]
        if self.is_repeatable is False and Without.PARAMETERS not in right:
            return Cause.RACE, "the same calls give different answers"
        if self.is_right.get(Without.NEIGHBOURS) and self.movers and not {*right} - OF_PLACES:
            return self._leak_or_stale(self.movers)
        if right:
            cause, text = SHOWN[right[0]]
            more = " and ".join(each.value for each in right[1:])
            return cause, f"{text}; it is also right {more}" if more else text
        if self.is_right.get(Without.NEIGHBOURS) and self.movers is not None:
            text = "it depends on how many or how long its neighbours are, not on what they say"
            is_ragged = Capability.STEPPING in self.rerunner.trial.capabilities  # and has no pads
            return Cause.UNKNOWN if is_ragged else Cause.PADDING, text
        return None

    def _leak_or_stale(self, movers: Sequence[str]) -> tuple[Cause, str]:
        """Decides by the trace whether they shared a step or the neighbour had left before."""
        steps: dict[str, list[int]] = {}
        for number, record in enumerate(self.calls[self.symptom.call].schedule()):
            for row in record.rows:
                steps.setdefault(row.request_id, []).append(number)
        here = steps.get(self.symptom.request.request_id, [])
        live = [name for name in movers if not set(here).isdisjoint(steps.get(name, ()))]
        names = f"its answer follows the contents of {', '.join(map(repr, live or movers))}"
        if live:
            return Cause.LEAK, f"{names}, beside it"
        if here and any(steps.get(name, here)[0] > here[-1] for name in movers):
            return Cause.LEAK, f"{names}, which was to come later"
        return Cause.STALE, f"{names}, which had left before"


def wrong_again(
    rerunner: Rerunner,
    failure: Failure,
    attempts: Iterable[list[Call]],
    symptoms_of: SymptomsOf = symptoms_of,
) -> Reruns | None:
    """Returns the first attempt that has a wrong answer, preferably of the failed request and of wrong
    content; None if every answer is right."""
    name = failure.finding.request_id
    for calls in attempts:
        symptoms = symptoms_of(calls, rerunner.trial.oracle)
        symptoms.sort(key=lambda each: (not each.is_content, each.request.request_id != name))
        if symptoms:
            return Reruns(rerunner, calls, symptoms[0], symptoms_of=symptoms_of)
    return None


def _staying(request: Request, own: Request, room: int) -> Request:
    """Returns the request with a cap beyond that of `own`, where the context has room, and no end."""
    most = min(own.max_new_tokens + MORE, room - len(request.prompt_token_ids))
    asked = request.sampling and replace(request.sampling, stop_token_sequences=())
    if request.grammar is not None:  # which needs an end
        return request
    cap = max(request.max_new_tokens, most)
    return replace(request, max_new_tokens=cap, eos_token_ids=frozenset(), sampling=asked)


def _longer(request: Request, most: int) -> Request:
    return replace(request, max_new_tokens=min(request.max_new_tokens + MORE, most))


def _unadapted(workload: Workload) -> Workload:
    return workload.with_requests([replace(each, adapter=None) for each in workload.requests])


def only(workload: Workload, request: Request) -> Workload:
    arrivals = None if workload.arrivals is None else (0,)
    return replace(workload, requests=(request,), arrivals=arrivals, aborts=())
