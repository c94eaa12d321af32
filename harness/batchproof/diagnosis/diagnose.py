"""Names the most likely cause of a failure, with the evidence, in the order of docs/diagnosis.md. It
never changes a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from batchproof.api import FinishReason
from batchproof.checks.answers import structure_findings
from batchproof.diagnosis.batches import supposed
from batchproof.diagnosis.conduct import cause_of_exception, cause_of_refusal, explain_hang, of_conduct
from batchproof.diagnosis.counterfactual import Suspect
from batchproof.diagnosis.explain import Observed, evidence_of, explain, rounding_of
from batchproof.diagnosis.hypotheses import Answer, Family, answers_of, is_wrong, named_mistake
from batchproof.diagnosis.mistakes.choices import choice_mistakes
from batchproof.diagnosis.mistakes.ends import end_mistakes
from batchproof.diagnosis.mistakes.logprobs import logprob_mistakes, returned_mistakes
from batchproof.diagnosis.reruns import (
    MORE,
    OF_PLACES,
    SHOWN,
    Call,
    OutOfTimeError,
    Rerunner,
    Reruns,
    Symptom,
    Without,
    wrong_again,
)
from batchproof.diagnosis.sizes import size_words
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure
from batchproof.findings.finding_text import headline
from batchproof.findings.rules import CAUSE_OF_PROMISE, Replay, Rule
from batchproof.oracle.choosing import is_drawn
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.run.trial import Trial

# Rules about the form of what comes back, which shows no mistake of the computation.
ABOUT_FORM = {
    *(Rule.RETURN_TYPE, Rule.COMPLETION_TYPE, Rule.COMPLETION_FIELD),
    *(Rule.STEP_TYPE, Rule.EVENT_TYPE, Rule.EVENT_FIELD, Rule.TRACE_TYPE),
}
NONE = "no mistake of the list gives this answer"
MOST_NEEDS = 2  # that a line tells
SHORT = 16  # tokens before a wrong output: too few to see whether its error comes with their number
# Rules about what is made of logits.
FAMILY_OF: Mapping[Rule, Family] = {
    **dict.fromkeys((Rule.PROCESSED, Rule.FORBIDDEN), choice_mistakes),
    **dict.fromkeys((Rule.UNGRAMMATICAL, Rule.GRAMMATICAL_CHOICE), choice_mistakes),
    **dict.fromkeys((Rule.LOGPROB, Rule.RANK, Rule.TOP_LOGPROBS), logprob_mistakes),
    **dict.fromkeys((Rule.LOGPROBS_MISSING, Rule.PROMPT_LOGPROBS_MISSING), logprob_mistakes),
}
# Causes that a rerun can show of an answer with right tokens and a wrong end.
BESIDE_ENDS = (Cause.PREEMPTION, Cause.STALE, Cause.RACE, Cause.CANCEL, Cause.INPUT)


def diagnose(trial: Trial, failure: Failure, limit_s: float) -> Diagnosis:
    """Returns the most likely cause of the failure, found within about `limit_s` seconds. An engine
    call that has begun is not cut short, so the limit may be exceeded by one call."""
    rerunner = Rerunner(trial, limit_s)
    try:
        if failure.rule is Rule.HANG and not failure.scene.has_lifecycle:
            return explain_hang(rerunner, failure)
        if failure.rule.replay is Replay.CRASH:
            return cause_of_exception(rerunner, failure)
        family = FAMILY_OF.get(failure.rule)
        named = family and _of_right_logits(rerunner, failure, family)
        if named and (named.cause is not Cause.UNKNOWN or failure.rule.cause is None):
            return named
        own = _by_the_rule(failure)
        is_of_lifecycle = own is None or failure.promise is Promise.P23
        if failure.scene.has_lifecycle and is_of_lifecycle:  # which no rerun repeats
            own = Diagnosis(Cause.LIFECYCLE, headline(failure.finding))
        return of_conduct(rerunner, failure, own) if own else _investigate(rerunner, failure)
    except OutOfTimeError:
        if failure.rule is Rule.HANG:
            return Diagnosis(Cause.LIVENESS, Cause.LIVENESS.value)
        late = Diagnosis(Cause.UNKNOWN, f"no cause was found within {limit_s:g} s")
        return _by_the_rule(failure) or late


def _of_right_logits(rerunner: Rerunner, failure: Failure, family: Family) -> Diagnosis | None:
    """Names a mistake in what is made of logits, else what the reruns show; None if nothing of the
    family is wrong, neither when it is run again nor as it was given."""
    cause = CAUSE_OF_PROMISE[failure.rule.promise]

    def first_miss(own: Answer) -> int:
        misses = next(family(own)).misses
        at = [m[0] - own.num_prompt if isinstance(m, tuple) else m for m in misses]
        return max(0, min((each for each in at if isinstance(each, int)), default=0))

    def symptoms(calls: Sequence[Call], oracle: Oracle) -> list[Symptom]:
        wrong = (a for a in answers_of(calls, oracle) if is_wrong(family, a))
        return [Symptom(a.call, a.request, first_miss(a), is_content=True) for a in wrong]

    given = [Call(r.workload, r.completions, ()) for r in failure.scene.runs if r.completions]
    reruns = wrong_again(rerunner, failure, chain(rerunner.reruns(failure.scene), [given]), symptoms)
    if reruns is None:
        return None
    if reruns.needs_drafts():
        return _of_drafts(reruns, family)
    reruns.change()
    # Another draw may be right by chance.
    shown = None if is_drawn(reruns.symptom.request) else reruns.cause()
    if shown and shown[0] is not Cause.STALE:  # which is no matter of parameters
        shown = cause, shown[1]
    named = _named(reruns, family, cause)
    if named:
        return named
    size = size_words(reruns)
    sized = (Cause.SIZE, size) if size else None
    return _explained(reruns, evidence_of(reruns), size) or _shown(shown or sized, *reruns.facts)


def _shown(shown: tuple[Cause, str] | None, *facts: str) -> Diagnosis:
    """Returns what reruns show where no mistake of the list explains it."""
    cause, text = shown or (Cause.UNKNOWN, NONE)
    return Diagnosis(cause, text, (NONE, *facts) if shown else facts)


def _of_drafts(reruns: Reruns, family: Family) -> Diagnosis:
    """Names the mistake of an answer that is right without speculation, else what it needs besides."""
    reruns.change()
    named = _named(reruns, family, Cause.SPECULATION)
    if named is None and family is choice_mistakes:
        named = _explained(reruns, evidence_of(reruns), size_words(reruns))
        named = named and replace(named, text=f"{named.text}; {SHOWN[Without.DRAFTS][1]}")
    needs = ", and ".join(reruns.needs())
    return named or _shown((Cause.SPECULATION, f"it is right {needs}"), *reruns.facts)


def _named(
    reruns: Reruns, family: Family, cause: Cause, evidence: tuple[str, ...] = ()
) -> Diagnosis | None:
    name, oracle = reruns.symptom.request.request_id, reruns.rerunner.trial.oracle
    reran = (*reruns.reran, *reruns.with_longer_answers())
    own, *answers = (
        [a for a in answers_of(calls, oracle) if a.request.request_id == name]
        for calls in (reruns.calls, *reran)
    )
    wrong = next((each for each in own if is_wrong(family, each)), None)
    more = [*chain.from_iterable(answers)]
    named = wrong and named_mistake(reruns.rerunner, family, wrong, more, cause, reruns.is_right)
    if not named:
        return None
    needs = [each for each in reruns.needs() if each != Without.DRAFTS.value][:MOST_NEEDS]
    text = f"{named.text} (request {name!r})"
    text += f"; it is right {' or '.join(needs)}" if needs else ""
    return replace(named, text=text, evidence=(*named.evidence, *evidence, *reruns.facts))


def _by_the_rule(failure: Failure) -> Diagnosis | None:
    if failure.rule in ABOUT_FORM:
        return Diagnosis(Cause.UNKNOWN, headline(failure.finding))
    own = failure.rule.own_cause(failure.promise)
    return Diagnosis(own, headline(failure.finding)) if own else None


def _investigate(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    reruns = wrong_again(rerunner, failure, rerunner.reruns(failure.scene))
    if reruns is None:
        if failure.rule is Rule.GOOD_REFUSED:
            return cause_of_refusal(rerunner, failure)
        return _without_a_wrong_answer(failure, rerunner.trial.promise)
    symptom = reruns.symptom
    if reruns.needs_drafts():
        return _of_drafts(reruns, choice_mistakes if symptom.is_content else end_mistakes)
    call = reruns.calls[symptom.call]
    if not is_drawn(symptom.request):
        right, _ = rerunner.trial.oracle.under(call.workload.adapters).expected(symptom.request)
        delay = rerunner.trial.scheduling_delay
        at_once = streamed_wrongly(call, symptom, right, delay) or fed_too_early(call, symptom)
        if at_once or (at_once := _anothers(reruns)):
            return at_once
    if not symptom.is_content or failure.promise in (Promise.P3, Promise.P14):
        return _wrong_end(failure, reruns)
    return _wrong_content(failure, reruns)


def _anothers(reruns: Reruns) -> Diagnosis | None:
    """Returns a diagnosis if the answer, of several tokens, is that to another request of its call."""
    symptom, oracle = reruns.symptom, reruns.rerunner.trial.oracle
    answers, under = answers_of(reruns.calls, oracle), oracle.under(reruns.here.adapters)
    own = next((a for a in answers if a.call == symptom.call and a.request is symptom.request), None)
    if own is None or symptom.step > 0 or len(own.completion.token_ids) == 1:
        return None
    for each in own.others:
        is_beside = each.call == own.call and not is_drawn(each.request)
        if is_beside and own.completion.token_ids == under.expected(each.request)[0]:
            name = own.request.request_id
            text = f"it was given the answer to {each.request.request_id!r} (request {name!r})"
            return Diagnosis(Cause.ROUTING, text, ("all its tokens are those of that answer",))
    return None


def _wrong_content(failure: Failure, reruns: Reruns) -> Diagnosis:
    """Names a mistake under which the reference gives the wrong tokens or logits, else what the reruns
    show."""
    reruns.run()
    requests = [request for call in reruns.calls for request in call.workload.requests]
    is_grammar = any(each.grammar for each in requests)
    families = [choice_mistakes] if is_grammar or any(each.sampling for each in requests) else []
    for family in (*families, returned_mistakes):
        if named := _named(reruns, family, Cause.GRAMMAR if is_grammar else Cause.SAMPLING):
            return named
    shown = reruns.cause()
    if reruns.is_repeatable is False or failure.rule is Rule.LOGITS_FINITE:
        cause, text = shown or (Cause.UNKNOWN, headline(failure.finding))
        return Diagnosis(cause, text, tuple(reruns.facts))
    size = size_words(reruns)
    evidence = evidence_of(reruns)
    has_few = evidence and evidence[1].logits is None and len(evidence[1].tokens) < MORE
    longer = reruns.with_more_tokens() if has_few else None  # a few tokens fit many mistakes
    for calls in filter(None, (longer, reruns.calls)):
        for each, said in supposed(replace(reruns, calls=calls)):
            its = evidence if each.calls is reruns.calls else evidence_of(each)
            if explained := _explained(each, its, size):
                return replace(explained, evidence=(*explained.evidence, *said))
    rounding = evidence and rounding_of(reruns.rerunner.trial.subject, *evidence)
    if rounding:
        times, is_alike = rounding
        is_right_alone = bool(reruns.is_right.get(Without.NEIGHBOURS))
        length = len(reruns.symptom.request.prompt_token_ids) + reruns.symptom.step
        # Unlike rounding, it may still be an error that comes with neighbours, or with a size.
        is_rounding = is_alike or length < SHORT or (size is None and not is_right_alone)
        if is_rounding and 1e-3 < times < (0.05 if is_right_alone else 3.0):
            text = "the logits are off by no more than rounding to bfloat16 would make them"
            return Diagnosis(Cause.PRECISION, text, (f"{times:.2g} times as much", *reruns.facts))
    likely = failure.rule.likely_cause(failure.promise)
    if shown is None and likely in (Cause.CAP, Cause.INPUT, Cause.CANCEL):
        shown = likely, likely.value
    if size:
        shown = (shown[0], f"{shown[1]}; {size}") if shown else (Cause.SIZE, size)
    return _shown(shown, *reruns.facts)


def _without_a_wrong_answer(failure: Failure, tested: Promise) -> Diagnosis:
    """Names a cause when all answers are within rounding of the right one, or no rerun succeeded."""
    what, likely = headline(failure.finding), failure.rule.likely_cause(failure.promise)
    if tested is Promise.P15:
        text = "it answers rightly while no other engine is alive"
        return Diagnosis(Cause.SIDE_EFFECT, text, (what,))
    if failure.rule is Rule.NEAR_TIES:
        return Diagnosis(Cause.NEAR_TIE, what)
    right = "rerun on fresh engines, every answer is right"
    if likely in (None, Cause.RACE) and failure.rule not in (Rule.STATED, Rule.LOGITS_MISSING):
        return Diagnosis(Cause.RACE, right)
    return Diagnosis(likely or Cause.UNKNOWN, what, (right,))


def _explained(
    reruns: Reruns, evidence: tuple[Suspect, Observed] | None, size: str | None
) -> Diagnosis | None:
    """Names the mistake under which the reference gives the tokens, logits or logprobs; `size`: from
    which on it is made."""
    explanation = evidence and explain(reruns, *evidence)
    if not explanation:
        return None
    text = f"{explanation.text} (request {reruns.symptom.request.request_id!r})"
    facts = (explanation.words(), *([size] if size else []), *reruns.facts)
    return Diagnosis(_narrowed(explanation.cause, reruns), text, facts)


def _wrong_end(failure: Failure, reruns: Reruns) -> Diagnosis:
    """Names a cause for right tokens that are too many or too few, or have the wrong finish reason."""
    symptom, completion = reruns.symptom, reruns.answer_in(reruns.calls)
    assert completion is not None, "a symptom is that of an answer"
    call = reruns.calls[symptom.call]
    slip = next(structure_findings(symptom.request, completion), None)
    cause = CAUSE_OF_PROMISE.get(slip.rule.promise, Cause.CAP) if slip else Cause.CAP
    evidence: tuple[str, ...] = ()
    if completion.finish_reason is FinishReason.STOP and cause is Cause.CAP:
        cause = Cause.EOS
    if failure.promise is Promise.P14 and call.workload.needs_stepping and not call.workload.aborts:
        cause = Cause.STREAM
        # Otherwise `symptoms_of` would have reported the `generate` call.
        evidence = ("asked through generate: right",)
    reruns.run()
    reruns.movers = None  # the end depends on the tokens: a change of those says nothing about it
    for each in OF_PLACES:  # nor does a change of who is beside it
        reruns.is_right.pop(each, None)
    shown = reruns.cause()
    if shown and shown[0] in BESIDE_ENDS:
        cause = shown[0]
    elif evidence:
        shown = cause, evidence[0]
    else:
        shown = None if completion.token_ids else (Cause.DROPPED, "it comes back without a token")
    named = _named(reruns, end_mistakes, cause, evidence)
    return named or _shown(shown, *evidence, *reruns.facts)


def _narrowed(cause: Cause, reruns: Reruns) -> Cause:
    """Replaces a general cause by chunks or preemption if the answer is wrong only with those."""
    if cause not in (Cause.ADDRESSING, Cause.FEED):
        return cause
    if reruns.is_right.get(Without.PREEMPTIONS):
        return Cause.PREEMPTION
    return Cause.CHUNK if reruns.is_right.get(Without.CHUNKS) else cause


def fed_too_early(call: Call, symptom: Symptom) -> Diagnosis | None:
    """Returns a diagnosis if the trace shows a token sampled before all known tokens were fed, else
    None."""
    own, num_prompt = symptom.request.request_id, len(symptom.request.prompt_token_ids)
    rows = [row for record in call.trace for row in record.rows if row.request_id == own]
    num_outputs = 0
    for number, row in enumerate(rows):
        num_fed = row.context_len + row.query_len - row.num_drafted
        if row.is_sampled and num_fed < num_prompt + num_outputs:
            later = rows[number + 1 :]
            break
        num_outputs += row.num_sampled
    else:
        return None
    if num_outputs:
        what = "only the prompt was" if num_fed == num_prompt else f"only {num_fed} tokens were"
        text = f"after a preemption {what} fed again of {own!r}, not its {num_outputs} outputs"
        return Diagnosis(Cause.PREEMPTION, text)
    text = f"a token was taken when {num_fed} of the {num_prompt} prompt tokens of {own!r} were fed"
    if any(each.context_len >= num_fed and each.query_len > 1 for each in later):
        return Diagnosis(Cause.CHUNK, text)
    return Diagnosis(Cause.FEED if num_prompt - num_fed == 1 else Cause.INPUT, f"{text}, and no more")


def streamed_wrongly(
    call: Call, symptom: Symptom, right: Sequence[int], delay: int
) -> Diagnosis | None:
    """Returns a diagnosis if the events of a request are too many, too few, or in the wrong order. A
    call of `generate` may consist of events as well: more tokens than were sampled show it.

    `delay` is the number of samples behind its last token that the engine may discard.
    """
    completion = call.completion(symptom.request.request_id)
    if completion is None or call.workload.aborts:
        return None
    name, tokens = completion.request_id, completion.token_ids
    is_stepped = call.workload.needs_stepping
    if is_stepped and tuple(tokens) != tuple(right) and sorted(tokens) == sorted(right):
        return Diagnosis(Cause.STREAM, f"the right tokens of {name!r} are delivered in the wrong order")
    rows = [row for record in call.trace for row in record.rows]
    num_sampled = sum(row.num_sampled for row in rows if row.request_id == name)
    if not call.trace or len(tokens) <= num_sampled <= len(tokens) + delay:
        return None
    if not is_stepped and len(tokens) < num_sampled:
        return None  # what is cut from an answer need not be an event that was lost
    text = f"{num_sampled} tokens were sampled, but {len(tokens)} were delivered"
    return Diagnosis(Cause.STREAM, f"{text} (request {name!r})")
