"""Lets every two features meet on one engine, shows that they did, and names those that a failure
needs."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import ceil
from typing import NamedTuple

from batchproof.api import Capability, Completion, EngineConfig, FinishReason, Request, StepRecord
from batchproof.checks.broken import require
from batchproof.checks.draws import seed_findings
from batchproof.checks.happened import (
    ACCEPTED,
    CHUNKS,
    HITS,
    PREEMPTED,
    REJECTED,
    happened_in,
    has_newcomer,
)
from batchproof.generators.covering import (
    Choices,
    Meeting,
    Value,
    Values,
    alone,
    calls_of,
    choices_for,
    covering,
    excluded_for,
    meetings,
    without,
)
from batchproof.generators.dimensions import (
    ASKING,
    DIMENSIONS,
    ENDING,
    LAST,
    NAMES,
    OWNER,
    PLAIN,
    repeats_itself,
)
from batchproof.models.embedded import TWINS_MODEL
from batchproof.oracle.choosing import sampling_of
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.failures import ConformanceFailure
from batchproof.run.relations import ABOUT_ONE_ANSWER
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload

NUM_TRIES = 3  # of a meeting by itself, if the design did not show it


class Draw(NamedTuple):
    """A request that has a seed, its answer where nothing crowds it, and that among others."""

    request: Request
    alone: Completion
    among_others: Completion
    call: Workload  # of these
    values: Values  # of the workload

    @property
    def has_changed(self) -> bool:
        return self.alone.token_ids != self.among_others.token_ids


@dataclass(frozen=True)
class Served:
    """What came of two calls on one engine."""

    outcomes: Sequence[Outcome]
    trace: Sequence[StepRecord]
    draws: Sequence[Draw] | None  # None if the engine's or the model's cannot be compared

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each of `COUNTERS` happened."""
        return happened_in(self.trace)

    def interrupted(self) -> set[int]:
        """Returns the places of requests that were preempted between their tokens, and got two or more
        behind that: what is forgotten then shows at the second."""
        places: set[int] = set()
        num_tokens: dict[str, int] = {}
        num_before: dict[str, int] = {}  # the last preemption
        for record in self.trace:
            new = {*record.admitted} - num_before.keys()  # or again, after an abort or an end
            num_tokens |= dict.fromkeys(new, 0)
            num_before |= {name: num_tokens.get(name, 0) for name in record.preempted}
            for row in record.rows:
                name = row.request_id
                num_tokens[name] = num_tokens.get(name, 0) + row.num_sampled
                if 0 < num_before.get(name, 0) < num_tokens[name] - 1:
                    places.add(NAMES.index(name))
            num_before = {name: num for name, num in num_before.items() if name not in record.finished}
        return places

    def has(self, reason: FinishReason) -> bool:
        return any(each.finish_reason is reason for done in self.outcomes for each in done.completions)


MOST_BLOCKS = 12  # of a request, unless all prompts are short
# Who asks for something, by dimension.
WHO_ASKS = {
    "parameters": {*ASKING},
    "adapters": {*ASKING},
    "ends": {*ENDING},
    "logprobs": {OWNER, LAST},
}
# What depends on the whole of a prompt, of which a preemption may leave a part.
ABOUT_PROMPTS = {("logprobs", "of prompts"), ("parameters", "repetition")}
Evidence = Callable[[Served], bool]
# What shows that a dimension, or one of its values, had its effect. Other values are in the workload as
# it stands: a prompt is as long as it is, and parameters are judged by the answer.
EVIDENCE: Mapping[str | Value, Evidence] = {
    "chunks": lambda served: served.counts[CHUNKS] > 0,
    "prefixes": lambda served: served.counts[HITS] > 0,
    "pool": lambda served: served.counts[PREEMPTED] > 0,
    "slots": lambda served: any(record.waiting for record in served.trace),
    "drafts": lambda served: served.counts[ACCEPTED] + served.counts[REJECTED] > 0,
    ("drafts", "right"): lambda served: served.counts[ACCEPTED] > 0,
    ("drafts", "wrong"): lambda served: served.counts[REJECTED] > 0,
    ("arrival", "staggered"): lambda served: has_newcomer(served.trace),
    ("arrival", "late"): lambda served: has_newcomer(served.trace),
    "abort": lambda served: served.has(FinishReason.ABORTED),
    **{
        ("ends", value): lambda served: served.has(FinishReason.STOP)
        for value in ("first token", "inside", "at the cap", "stop sequence")
    },
}


# What an engine may leave undone, unless it has the capability: recurrent states need not be kept in
# the middle of a prompt (C-7.7), and who comes last may be served first.
MAY: Mapping[Value, Capability | None] = {
    ("prefixes", "half"): None,
    ("abort", "waiting"): Capability.SCHEDULING,
}


class Meetings:
    """What has met on an engine, as workloads are served to it."""

    def __init__(
        self, trial: Trial, seed: int, strength: int = 2, block_sizes: Sequence[int] = ()
    ) -> None:
        """`strength` values meet in each meeting. `seed` decides the design and the workloads, and they
        are others on each model. Without `block_sizes` they are the engine's smallest."""
        self.choices = choices_for(trial.capabilities, trial.fields, trial.subject, trial.grammars)
        self.excluded = excluded_for(trial.fields)
        if "n-grams" in self.choices["drafts"] and not repeats_itself(trial.oracle):
            self.choices["drafts"].remove("n-grams")
        self.strength = strength
        self._shown: set[Meeting] = set()
        self._trial = trial
        self._seed = random.Random(f"{seed} {trial.subject.name}").randrange(1 << 30)
        self._block_sizes = block_sizes or trial.block_sizes
        if trial.subject.context_len < MOST_BLOCKS * max(self._block_sizes):
            self.choices["prompts"] = ["short"]
        self._draws: list[Draw] = []
        self._doubtful: list[Values] = []  # where a draw was another than alone

    def restrict(self, **values: Sequence[str]) -> None:
        """Leaves out other values of these dimensions, but no plain one."""
        for name, kept in values.items():
            self.choices[name] = [each for each in self.choices[name] if each in (PLAIN[name], *kept)]

    @property
    def missing(self) -> list[Meeting]:
        """The meetings that must occur and were not shown; none of an engine without a trace, which
        shows few. Whom a preemption takes, and who gets drafts, is the engine's choice, and so is
        whether it gives back what lies behind a window, so that its pool is never full."""
        gives_back = self._trial.subject.reach is not None
        return [
            each
            for each in self._unshown()
            if not _is_a_choice(each) and not (gives_back and ("pool", "tight") in each)
        ]

    def _unshown(self) -> list[Meeting]:
        can = self._trial.capabilities
        if Capability.TRACING not in can:
            return []
        possible = meetings(self.choices, self.strength, self.excluded)
        free = {value for value, unless in MAY.items() if unless not in can}
        return [each for each in possible if each not in self._shown and free.isdisjoint(each)]

    def serve_design(self, share: float = 1.0) -> None:
        """Serves the covering design, with what shows more by itself, or this share of the design, and
        judges all answers. Raises `ConformanceFailure` of the fewest values that show it, and what
        `Trial.check` raises."""
        design = covering(self.choices, self._seed, self.strength, self.excluded)
        for values in design[: ceil(share * len(design))]:
            self._serve(values)
        if share == 1.0:
            for meeting in meetings(self.choices, 2, self.excluded):
                for values in _by_itself(meeting, self.choices):
                    self._serve(values)
        self._judge_draws()

    def serve_missing(self) -> None:
        """Serves each meeting by itself that the design did not show. Raises as `serve_design` does."""
        for meeting in self._unshown():
            for _ in range(NUM_TRIES if _is_a_choice(meeting) else 3 * NUM_TRIES):
                if meeting not in self._shown:
                    self._serve(alone(meeting))
        self._judge_draws()

    def _judge_draws(self) -> None:
        """Serves more of what has changed a draw: a mistake repeats itself, rounding hardly does."""
        for values in (*self._doubtful,) * NUM_TRIES:
            self._serve(values)
        self._doubtful.clear()
        if self._draws:
            latest = self._draws[::-1]  # whose runs are still known
            shown = next((each for each in latest if each.has_changed), latest[0])
            with self._trial.reporting(shown.call):
                wanted, before, after, *_ = zip(*latest, strict=True)
                relation = _what_changed(latest)
                require(seed_findings(wanted, before, after, self._trial.oracle, relation))

    def _serve(self, values: Values) -> None:
        call = (self._seed, self._block_sizes)
        self._seed += 1
        try:
            served = _served(self._trial, values, *call)
        except ConformanceFailure as failure:
            raise _explained(self._trial, values, failure, *call) from None
        draws = served.draws or ()
        self._draws += draws
        if any(each.has_changed for each in draws):
            self._doubtful.append(values)
        had = sorted(each for each in values.items() if _is_in(each, served))
        moved = served.interrupted()
        self._shown.update(
            each for each in combinations(had, self.strength) if _met(each, served, moved)
        )


def _met(meeting: Meeting, served: Served, interrupted: set[int]) -> bool:
    """Returns whether values met that were in a workload each: a preemption and what is asked for only
    in one request, and what is drawn with a seed only where draws are compared."""
    if ("parameters", "drawn") in meeting and served.draws == ():
        return False
    return all(interrupted & asking for asking in _who_is_to_be_interrupted(meeting))


def _who_is_to_be_interrupted(meeting: Meeting) -> Iterator[set[int]]:
    """Yields those who ask for something of whom one must be interrupted to meet a preemption. Who
    ends early need not be."""
    if ("pool", "tight") in meeting:
        for name, value in meeting:
            if name in WHO_ASKS and value not in (PLAIN[name], "first token", "inside"):
                yield WHO_ASKS[name]


def _by_itself(meeting: Meeting, choices: Choices) -> Iterator[Values]:
    """Yields what is served besides, since among other features these meetings may show less: who is
    interrupted, also in the middle of a prompt, and a draft that was rejected and comes in a prompt."""
    if any(_who_is_to_be_interrupted(meeting)):
        yield alone(meeting)
        if ABOUT_PROMPTS & {*meeting} and "least" in choices["chunks"]:
            slow = {"chunks": "least", "prompts": "long", "slots": "two"}
            yield from ({**alone(meeting), **slow},) * NUM_TRIES
    if ("prefixes", "turn") in meeting and any(name == "drafts" for name, _ in meeting):
        yield alone(meeting)


def _is_a_choice(meeting: Meeting) -> bool:
    has_drafts = any(name == "drafts" and value != PLAIN[name] for name, value in meeting)
    # When new weights come decides what is answered, and so whether an EOS is met.
    are_ends_others = ("interruption", "new weights") in meeting and "ends" in dict(meeting)
    return has_drafts or are_ends_others or any(_who_is_to_be_interrupted(meeting))


def _is_in(value: Value, served: Served) -> bool:
    name, _ = value
    evidence = EVIDENCE.get(value) or EVIDENCE.get(name)
    return value in PLAIN.items() or evidence is None or evidence(served)


def _served(trial: Trial, values: Values, seed: int, block_sizes: Sequence[int]) -> Served:
    calls = calls_of(values, trial, seed, block_sizes)
    with trial.engine(calls[0].config) as engine:
        outcomes = [
            check_run_with_aborts(trial, call, engine) if call.aborts else trial.check(call, engine)
            for call in calls
        ]
        trace = trial.trace_of(engine)
    # Tokens of a constructed model have equals, which an engine that sorts before it draws may put in
    # any order: there the same seed may draw another.
    has_equals = trial.subject.oracle is not None or trial.subject.name == TWINS_MODEL
    if has_equals or Capability.SEEDED_SAMPLING not in trial.capabilities:
        return Served(outcomes, trace, None)
    return Served(outcomes, trace, tuple(_draws(trial, values, calls, outcomes)))


def _what_changed(draws: Sequence[Draw]) -> str:
    """Returns which values all draws have that are others than alone, and not all draws."""
    among, everywhere = (
        set.intersection(*({*each.values.items()} for each in some)) if some else set()
        for some in ([each for each in draws if each.has_changed], draws)
    )
    found = sorted(among - everywhere - {*PLAIN.items()})
    return _where(found) if found else "where other features meet"


def _where(values: Iterable[Value]) -> str:
    return f"where {' meets '.join(map('='.join, values))}"


def _draws(
    trial: Trial, values: Values, calls: Sequence[Workload], outcomes: Sequence[Outcome]
) -> Iterator[Draw]:
    """Serves each request that has a seed on a fresh engine that has room, and yields its answer there
    and those among others, unless it was aborted."""
    seeded = [each for each in calls[-1].requests if sampling_of(each).seed is not None]
    if not seeded:
        return
    limits = ("block_size", "num_speculative_tokens", "draft_agreement", "max_loras")
    roomy = EngineConfig(**{name: getattr(calls[-1].config, name) for name in limits})
    alike = replace(calls[-1].together(), requests=tuple(seeded), config=roomy)
    known = dict(zip(seeded, trial.check(alike).completions, strict=True))
    for call, outcome in zip(calls, outcomes, strict=True):
        for request, given in zip(call.requests, outcome.completions, strict=True):
            same = known.get(request)
            if same is not None and given.finish_reason is not FinishReason.ABORTED:
                yield Draw(request, same, given, call, values)


def _explained(
    trial: Trial, values: Values, failure: ConformanceFailure, seed: int, block_sizes: Sequence[int]
) -> ConformanceFailure:
    """Returns the failure of as few values as break the same rule, or one about a single answer: one
    dimension after the other takes its plain value."""
    for name in PLAIN:
        fewer = without(values, name, excluded_for(trial.fields))
        if fewer is not None and fewer != values:
            try:
                _served(trial.renewed(), fewer, seed, block_sizes)
            except ConformanceFailure as smaller:
                is_plainer = smaller.failure.promise in ABOUT_ONE_ANSWER
                if is_plainer or smaller.failure.rule is failure.failure.rule:
                    values, failure = fewer, smaller
    needed = {name: value for name, value in values.items() if value != PLAIN[name]}
    appeared = _where(needed.items()) if needed else "in a plain workload"
    promise = failure.failure.promise
    if promise in ABOUT_ONE_ANSWER:
        about = {each for name in needed if (each := DIMENSIONS[name].promise) is not None}
        promise = about.pop() if len(about) == 1 else promise
    return ConformanceFailure(failure.failure.under(promise, appeared))
