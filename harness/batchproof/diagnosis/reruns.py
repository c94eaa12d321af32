"""Finds what changes a wrong answer: a fresh engine, no neighbours, other neighbours, other limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.prefixes import may_share
from batchproof.diagnosis.rerunner import Call, OutOfTimeError, Rerunner, same_answer
from batchproof.diagnosis.symptoms import Symptom, is_bad, symptoms_of
from batchproof.findings.causes import Cause
from batchproof.workload.workloads import Workload

ROOMY = EngineConfig()
FEWEST_HALVED = 8  # tokens
NUM_REWRITTEN = 6  # requests whose contents are rewritten, one at a time


@dataclass
class Reruns:
    """What the reruns show, as values and as `facts` for the report.

    A value of None means that the rerun does not apply or did not finish.
    """

    is_repeatable: bool | None = None
    is_right_alone: bool | None = None
    is_right_without_history: bool | None = None
    is_right_without_prefix_cache: bool | None = None
    is_right_with_large_pool: bool | None = None
    is_right_with_whole_prompts: bool | None = None
    is_right_without_aborts: bool | None = None
    is_right_without_bad_requests: bool | None = None
    movers: list[str] = field(default_factory=list)  # neighbours whose contents move the answer
    facts: list[str] = field(default_factory=list)


def rerun(rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom) -> Reruns:
    """Reruns the calls, each time on a fresh engine, first unchanged and then with one thing changed.

    Raises `OutOfTimeError`.
    """
    found = Reruns()
    workloads = [call.workload for call in calls]
    case = _Case(rerunner, calls, symptom, found)
    again = rerunner.run(workloads)
    if again is not None:
        was, now = (
            each[symptom.call].completion(symptom.request.request_id) for each in (calls, again)
        )
        found.is_repeatable = same_answer(was, now)
        if not found.is_repeatable:
            found.facts.append("the same calls on another fresh engine: answered differently")
    here = workloads[symptom.call]
    others = [r for r in here.requests if r is not symptom.request]
    found.is_right_alone = case.is_right("alone on a fresh engine", [_only(here, symptom.request)])
    if symptom.call and len(calls) > 1:
        found.is_right_without_history = case.is_right(
            "on a fresh engine, without the calls before", [here]
        )
    if here.aborts:
        without = replace(here, aborts=())
        found.is_right_without_aborts = case.is_right(
            "with nothing aborted", _swapped(workloads, symptom, without)
        )
    good = [r for r in here.requests if not is_bad(r, rerunner.trial.oracle)]
    if len(good) < len(here.requests):
        found.is_right_without_bad_requests = case.is_right(
            "without the bad request", _swapped(workloads, symptom, here.with_requests(good))
        )
    _limits(case, workloads, found)
    if others and found.is_right_alone is not False:
        _rewrite(case, workloads, here, found)
    return found


def is_right_without_drafts(rerunner: Rerunner, calls: Sequence[Call], symptom: Symptom) -> bool | None:
    """Returns whether the request is answered rightly if nothing is drafted; None if nothing was.

    Raises `OutOfTimeError`.
    """
    workloads = [call.workload for call in calls]
    if not workloads[-1].config.num_speculative_tokens:
        return None
    plain = [each.with_config(num_speculative_tokens=None, draft_agreement=None) for each in workloads]
    return _Case(rerunner, calls, symptom, Reruns()).is_right("without speculation", plain)


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


def _swapped(workloads: Sequence[Workload], symptom: Symptom, new: Workload) -> list[Workload]:
    return [new if number == symptom.call else each for number, each in enumerate(workloads)]


def _limits(case: _Case, workloads: Sequence[Workload], found: Reruns) -> None:
    """Reruns without the prefix cache, with a large pool, and with a token budget above every
    prompt."""
    capabilities = case.rerunner.trial.capabilities
    config = workloads[-1].config
    if may_share(config, capabilities):
        unshared = [each.with_config(prefix_caching=False) for each in workloads]
        found.is_right_without_prefix_cache = case.is_right("with prefix caching off", unshared)
    if Capability.PREEMPTION in capabilities and config.num_blocks is not None:
        large = [each.with_config(num_blocks=None) for each in workloads]
        found.is_right_with_large_pool = case.is_right("with a pool that never runs full", large)
    longest = max((len(r.prompt_token_ids) for w in workloads for r in w.requests), default=0)
    if Capability.CHUNKED_PREFILL in capabilities and config.max_num_batched_tokens < 4 * longest:
        whole = [
            each.with_config(max_num_batched_tokens=ROOMY.max_num_batched_tokens) for each in workloads
        ]
        found.is_right_with_whole_prompts = case.is_right(
            "with a budget that holds whole prompts", whole
        )


def _rewrite(case: _Case, workloads: Sequence[Workload], here: Workload, found: Reruns) -> None:
    """Rewrites each neighbour at the same length and notes whose contents change the answer."""
    symptom, vocab_size = case.symptom, case.rerunner.trial.subject.vocab_size
    was = case.calls[symptom.call].completion(symptom.request.request_id)
    for number, request in enumerate(here.requests[:NUM_REWRITTEN]):
        if request is symptom.request or not request.prompt_token_ids:
            continue
        shifted = tuple((token + 1) % vocab_size for token in request.prompt_token_ids)
        rewritten = list(here.requests)
        rewritten[number] = replace(request, prompt_token_ids=shifted, eos_token_ids=frozenset())
        calls = case.rerunner.run(_swapped(workloads, symptom, here.with_requests(rewritten)))
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
    verdicts = (
        (found.is_repeatable is False, Cause.RACE, "the same calls give different answers"),
        (
            found.is_right_without_prefix_cache,
            Cause.STALE,
            "it is right while nothing is taken over from a prefix cache",
        ),
        (found.is_right_without_history, Cause.STALE, "an earlier call changes the answer"),
        (found.is_right_without_aborts, Cause.CANCEL, "an abort of another request changes the answer"),
        (
            found.is_right_without_bad_requests,
            Cause.INPUT,
            "a bad request beside it changes the answer",
        ),
        (found.is_right_with_large_pool, Cause.PREEMPTION, "it is right while nothing is preempted"),
        (found.is_right_with_whole_prompts, Cause.CHUNK, "it is right while no prompt is fed in parts"),
    )
    for applies, cause, words in verdicts:
        if applies:
            return cause, words
    if found.is_right_alone and found.movers:
        return _leak_or_stale(found, symptom, calls)
    return None


def _leak_or_stale(found: Reruns, symptom: Symptom, calls: Sequence[Call]) -> tuple[Cause, str]:
    """Decides by the trace whether they shared a step or the neighbour had left before."""
    own = symptom.request.request_id
    together = {
        row.request_id
        for record in calls[symptom.call].schedule()
        if any(row.request_id == own for row in record.rows)
        for row in record.rows
    }
    live = [name for name in found.movers if name in together]
    if live:
        return Cause.LEAK, f"its answer follows the contents of {', '.join(map(repr, live))}, beside it"
    names = ", ".join(map(repr, found.movers))
    return Cause.STALE, f"its answer follows the contents of {names}, which had left before"
