"""What is done with an engine besides requests, as the checks need it (promise P23): before which
records of a trace it was done, which weights answer for which tokens, and that an engine that sleeps or
is paused stands still."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from batchproof.api import Completion, FinishReason, Request, StepRecord
from batchproof.checks.answers import chosen_findings
from batchproof.findings.finding import Finding, Rule, found
from batchproof.oracle.choosing import is_drawn
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import CLEAR, PAUSE, RESUME, SLEEP, WAKE, Outcome, Workload

ENDS = {SLEEP: WAKE, PAUSE: RESUME}


@dataclass(frozen=True, slots=True)
class Cuts:
    """Before which records of a workload's trace something was done with the engine; which of that
    replaced the weights, and what made it forget prefixes, as each update does."""

    all: frozenset[int] = frozenset()
    updates: frozenset[int] = frozenset()
    clearings: frozenset[int] = frozenset()

    @classmethod
    def of(cls, workload: Workload, outcome: Outcome) -> Self:
        """Returns the cuts in the records that the workload added to the trace."""
        placed = [(each, _record_of(outcome, each.step)) for each in workload.interruptions]
        return cls(
            frozenset(place for _, place in placed),
            frozenset(place for each, place in placed if each.is_update),
            frozenset(place for each, place in placed if each.kind == CLEAR or each.is_update),
        )


NO_CUTS = Cuts()


def _record_of(outcome: Outcome, step: int) -> int:
    """Returns how many records the workload has added to the trace before this step."""
    lens = outcome.trace_lens
    return lens[step] - lens[0] if lens else 0


def standing_findings(workload: Workload, outcome: Outcome, has_trace: bool) -> Iterator[Finding]:
    """Yields steps in which the engine must stand still, but feeds something, as its trace shows, or
    returns a token. A token that was chosen before may come in the first; where a trace shows that
    nothing is fed, in any."""
    for each in workload.interruptions:
        if each.kind not in ENDS:
            continue
        until = (i.step for i in workload.interruptions if i.kind == ENDS[each.kind])
        end = min((step for step in until if step >= each.step), default=each.step)
        for step in range(each.step, end):
            if has_trace and _record_of(outcome, step + 1) > _record_of(outcome, step):
                yield found(Rule.STANDING_STEP, step=step, kind=each.kind, since=each.step)
        for step, event in () if has_trace else outcome.events:
            if event.token_id is not None and each.step < step < end:
                name = event.request_id
                yield found(Rule.STANDING_TOKEN, name, step, kind=each.kind, since=each.step)


class Part(NamedTuple):
    """The tokens of an answer that one state of the weights is to answer for, as an answer of its own:
    to the prompt and all tokens before."""

    weights: int
    request: Request
    completion: Completion


def parts(
    pairs: Sequence[tuple[Request, Completion]],
    workload: Workload,
    outcome: Outcome,
    records: Sequence[StepRecord],
    oracle_of: Callable[[int], Oracle],
) -> Iterator[Part]:
    """Yields the parts of each answer. `oracle_of` returns the oracle of a state.

    The records show when a token was chosen. Without them its event does, but the first step behind an
    update may return tokens of either state.
    """
    updates = [(each.step, each.weights) for each in workload.updates]
    chosen: defaultdict[str, list[int]] = defaultdict(list)  # moments, by request
    grace = 0 if records else 1
    if records:
        updates = [(_record_of(outcome, step), weights) for step, weights in updates]
        for place, record in enumerate(records):
            for row in record.rows:
                chosen[row.request_id] += [place] * row.num_sampled
    else:
        for step, event in outcome.events:
            chosen[event.request_id] += [step] * (event.token_id is not None)

    def weights_at(moment: int) -> int:
        return [weights for since, weights in updates if since <= max(moment, 0)][-1]

    for request, completion in pairs:
        moments, start = chosen[request.request_id] or [0], 0
        weights = weights_at(moments[0] - grace)
        for place in range(len(completion.token_ids)):
            moment = moments[min(place, len(moments) - 1)]
            now, late = weights_at(moment), weights_at(moment - grace)
            if now == weights or (
                late == weights and _is_of(oracle_of(late), request, completion, place)
            ):
                continue
            if place > start:
                yield _part(weights, request, completion, start, place)
            start, weights = place, now
        yield _part(weights, request, completion, start, None)


def _is_of(oracle: Oracle, request: Request, completion: Completion, place: int) -> bool:
    """Returns whether the token is the right one in this state, or may be drawn in it."""
    asked = _behind(request, completion.token_ids[:place], 1)
    token = completion.token_ids[place : place + 1]
    if is_drawn(asked):
        return next(chosen_findings(asked, token, oracle), None) is None
    return oracle.choices(asked) == token


def _part(weights: int, request: Request, completion: Completion, start: int, end: int | None) -> Part:
    tokens = completion.token_ids
    cap = request.max_new_tokens - start if end is None else end - start
    reason = completion.finish_reason if end is None else FinishReason.LENGTH
    logprobs = completion.logprobs and completion.logprobs[start:end]
    given = replace(completion, token_ids=tokens[start:end], finish_reason=reason, logprobs=logprobs)
    return Part(weights, _behind(request, tokens[:start], cap), given)


def _behind(request: Request, token_ids: tuple[int, ...], cap: int) -> Request:
    """Returns the request for what follows these tokens of its answer, which become part of the prompt.
    Not for one whose parameters or ends depend on which tokens are of the answer."""
    asked = request.sampling
    if asked is not None and asked.min_tokens:
        asked = replace(asked, min_tokens=max(0, asked.min_tokens - len(token_ids)))
    prompt = (*request.prompt_token_ids, *token_ids)
    return replace(request, prompt_token_ids=prompt, max_new_tokens=cap, sampling=asked)
