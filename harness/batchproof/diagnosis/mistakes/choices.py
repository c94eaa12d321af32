"""Mistakes in the choice of tokens from right logits: by whose parameters and grammar, by which stages,
by what is known of the past, and by drafts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Request
from batchproof.checks.answers import of_each, slack
from batchproof.decoding.speculation import proposed_instead
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.diagnosis.mistakes.grammars import grammar_masks, masked, masks_of_the_step
from batchproof.diagnosis.reruns import Without
from batchproof.oracle.choosing import STAGES, Past, is_drawn, is_plain, kept, sampling_of
from batchproof.oracle.oracle import centred

Given = Iterator[tuple[str, Tensor]]  # a mistake, and the logits that tokens are chosen from
BOUNDS: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # what lets all tokens through
AFTER = ("min_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty")
Rated = tuple[frozenset[int], float]  # the outputs that a mistake does not give; how much it allows
PLAIN = "tokens are chosen without the request's parameters"


def choice_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; places are output steps."""
    if is_drawn(own.request):
        for mistake, may_be in _drawn(own):
            yield Hypothesis(mistake, *_not_let_through(own, may_be))
        asked, off = sampling_of(own.request), slack(own.request, own.oracle)
        yield from _cut_off(own, lambda values: _not_let_through(own, kept(values, asked, off)))
        return
    for mistake, values in _given(own):
        missed = _not_given(own, values)
        if not mistake and own.has_drafts and is_plain(own.request):
            missed |= _misfit(own, own.logits)
        yield Hypothesis(mistake, missed)
        if not own.has_drafts and _places(_is_off(own, own.logits)):
            return  # it is the logits that are wrong, not what is made of them
    yield from _cut_off(own, lambda values: (_not_given(own, values), 0.0))
    yield from _of_another_row(own)
    yield from _drafts(own) if own.has_drafts else ()


def _not_let_through(own: Answer, may_be: Tensor) -> Rated:
    return _places(~of_each(may_be, own.tokens)), float(may_be.sum(-1).double().log().sum())


def _places(is_missed: Tensor) -> frozenset[int]:
    return frozenset(is_missed.nonzero()[:, 0].tolist())


def _values(
    own: Answer,
    request: Request | None = None,
    left_out: str | None = None,
    pasts: Mapping[str, Past] | None = None,
) -> Tensor:
    """Returns what the stages make of the logits, `(n, vocab)`; `pasts`: of those that know another."""
    values = own.grammatical
    for name, stage in STAGES.items():
        if name != left_out:
            values = stage(values, request or own.request, (pasts or {}).get(name, own.past))
    return values


def _given(own: Answer) -> Given:
    asked = sampling_of(own.request)
    active = [name for name in STAGES if name in asked.changed]
    yield "", _values(own)
    if active:
        yield PLAIN, own.logits
    for name in active if len(active) > 1 else ():
        yield f"{name} is left out", _values(own, left_out=name)
    yield from ((words, masked(own, allowed)) for words, allowed in grammar_masks(own))
    yield from _of_others(own)
    knowing = tuple(name for name in active if name in AFTER)
    yield from _of_the_past(own, knowing) if knowing else ()


def _of_others(own: Answer) -> Given:
    """Yields choices by the parameters of each other request, by all and then by one field alone."""
    asked = sampling_of(own.request)
    for other in own.neighbours:
        its, whose = sampling_of(other.request), repr(other.request.request_id)
        if not its.changes_logits or its == asked:
            continue
        eos = own.request.eos_token_ids | other.request.eos_token_ids
        changed = replace(own.request, eos_token_ids=eos, sampling=its)
        yield f"tokens are chosen by the parameters of {whose}", _values(own, changed)
        for name in set(STAGES) & {*its.changed}:
            one: dict[str, Any] = {name: getattr(its, name)}
            values = _values(own, replace(changed, sampling=replace(asked, **one)))
            yield f"{name} is that of {whose}", values


def _of_another_row(own: Answer) -> Iterator[Hypothesis]:
    """Yields the choice by what the grammar of any other row of the step allows."""
    missed = [_not_given(own, masked(own, each)) for each in masks_of_the_step(own)]
    if missed and any(each.request.grammar for each in (own, *own.others)):
        right = _not_given(own, _values(own))
        words = "what a grammar allows is applied to another row of the step"
        yield Hypothesis(words, right.intersection(*missed), width=float(len(missed)))


def _of_the_past(own: Answer, knowing: tuple[str, ...]) -> Given:
    """Yields choices in which one of these stages, or all of them, know another past."""
    pasts = [*_pasts(own)]
    nothing = replace(own.past, counts=0 * own.past.counts, num_produced=0 * own.past.num_produced)
    for names in (*((name,) for name in knowing), *([knowing] if len(knowing) > 1 else [])):
        stages = ", ".join(names)
        yield (
            f"{stages}: no produced token is seen",
            _values(own, pasts=dict.fromkeys(names, nothing)),
        )
        for words, past in pasts:
            yield f"{stages}: {words}", _values(own, pasts=dict.fromkeys(names, past))


def _pasts(own: Answer) -> Iterator[tuple[str, Past]]:
    num, counts, prompt = own.past.num_produced, own.past.counts, own.past.prompt
    newest = counts.diff(dim=0, prepend=counts[:1])
    firsts = [each.first for each in own.outputs]
    yield "the prompt is not seen", Past(0 * prompt, counts, num)
    yield "the prompt counts as produced", Past(prompt, counts + prompt, num + own.num_prompt)
    yield "the newest token is not seen", Past(prompt, counts - newest, num - 1)
    yield "tokens of the same step are not seen", Past(prompt, counts[firsts], num[firsts])


def _resumed(own: Answer) -> Iterator[list[int]]:
    """Yields for each output how many were known when the request was last preempted: by the trace, or
    without one wherever a preemption may have been."""
    if own.calls[own.call].trace:
        known = [each.num_resumed for each in own.outputs]
        yield from [known] if any(known) else []
    elif own.calls[own.call].workload.config.num_blocks is not None:
        places = range(len(own.tokens))
        yield from ([at if place >= at else 0 for place in places] for at in places[1:])


def _cut_off(own: Answer, rated: Callable[[Tensor], Rated]) -> Iterator[Hypothesis]:
    """Yields stages that forget what was before a preemption, or in the first part of the prompt."""
    knowing = [name for name in AFTER if name in sampling_of(own.request).changed]
    past = own.past
    since = [
        replace(
            past,
            counts=past.counts - past.counts[known],
            num_produced=past.num_produced - past.num_produced[known],
        )
        for known in _resumed(own)
    ]
    ends = [own.request.prompt_token_ids[first:] for first in range(1, own.num_prompt)]
    seen = [torch.tensor(each).bincount(minlength=past.counts.shape[1]) for each in ends]
    parts = [replace(past, prompt=each.to(past.prompt)) for each in seen]
    a_part = "only the end of the prompt is seen, as behind a cached prefix or in its last chunk"
    for words, tried, needs in (
        ("tokens from before a preemption are not seen", since, Without.PREEMPTIONS),
        (a_part, parts, None),
    ):
        if knowing and tried:
            values = (_values(own, pasts=dict.fromkeys(knowing, each)) for each in tried)
            found = min(map(rated, values), key=lambda each: (len(each[0]), each[1]))
            yield Hypothesis(f"{', '.join(knowing)}: {words}", *found, needs=needs)


def _not_given(own: Answer, values: Tensor) -> frozenset[int]:
    """Returns the outputs whose token is not the best choice from these logits."""
    off = values.amax(-1) - of_each(values, own.tokens)
    return _places(~(off <= 2 * slack(own.request, own.oracle)))


def _drawn(own: Answer) -> Given:
    """Yields which tokens a mistake lets through, bool `(n, vocab)`."""
    asked, values, off = sampling_of(own.request), _values(own), slack(own.request, own.oracle)

    def let_through(**changes: Any) -> Tensor:
        return kept(values, replace(asked, **changes), off)

    active, right = [name for name in BOUNDS if name in asked.changed], let_through()
    yield "", right
    yield PLAIN, own.logits >= own.logits.amax(-1, keepdim=True) - 2 * off
    if "top_p" in active and len(active) > 1:
        alone = let_through(top_k=BOUNDS["top_k"], min_p=BOUNDS["min_p"])
        words = "top_p is cut from all tokens, not from what the other bounds leave"
        yield words, alone & let_through(top_p=BOUNDS["top_p"])
    for name in active:
        yield f"{name} is left out", let_through(**{name: BOUNDS[name]})
    yield "the temperature is applied twice", let_through(temperature=asked.temperature**2)
    for mistake, changed in _given(own):
        if mistake not in ("", PLAIN):
            yield mistake, kept(changed, asked, off)


def _drafts(own: Answer) -> Iterator[Hypothesis]:
    """Yields mistakes with drafts: those that stay in the answer, and those that stay in the cache."""
    agreement = own.calls[own.call].workload.config.draft_agreement
    tokens, vocab_size = own.tokens, own.logits.shape[1]
    for words, chosen in (
        ("drafts stay that the model would not have chosen", _values(own).argmax(-1).tolist()),
        ("rejected drafts stay behind the tokens in their place", [*own.ids[-1:], *tokens[:-1]]),
    ):
        if agreement is not None:
            drafts = [proposed_instead(token, vocab_size, agreement) for token in chosen]
            yield Hypothesis(words, _places(torch.tensor(drafts) != torch.tensor(tokens)))
    if not is_plain(own.request):
        return
    fed, replaced, wrong = tokens, list[int](), _misfit(own, own.logits)
    while wrong and (at := min(wrong) - 1) >= 0 and at not in replaced:
        # A draft model may keep the rejected ones as well; an n-gram is what followed its last token.
        likely = (fed[at], int(own.logits[at].argmax()))
        sofar = own.ids[: own.num_prompt + at]
        instead = {after for last, after in pairwise(sofar) if last == sofar[-1]}
        if agreement is not None:
            instead = {proposed_instead(token, vocab_size, agreement) for token in likely}
        tries = [(*fed[:at], token, *fed[at + 1 :]) for token in sorted(instead - {fed[at]})]
        scores = own.oracle.score_all([(own.request.prompt_token_ids, each) for each in tries])
        found = [(_misfit(own, each), fed) for each, fed in zip(scores, tries, strict=True)]
        replaced.append(at)
        wrong, fed = max(
            found, key=lambda each: min(each[0], default=len(tokens)), default=(wrong, fed)
        )
    yield Hypothesis("the cache keeps rejected drafts in place of tokens of the answer", wrong)


def _misfit(own: Answer, logits: Tensor) -> frozenset[int]:
    """Returns the steps whose token, or logits as far as they were given, these logits do not give."""
    regret = logits.amax(-1) - of_each(logits, own.tokens)
    return _places((regret > 2 * own.oracle.logit_bound) | _is_off(own, logits))


def _is_off(own: Answer, logits: Tensor) -> Tensor:
    """Returns whether the engine's logits, if they were given, are others than these, bool `(n,)`."""
    given = own.completion.logits
    if given is None or given.shape != logits.shape:
        return torch.zeros(len(logits), dtype=torch.bool)
    return (centred(given) - centred(logits)).abs().amax(-1) > 1.5 * own.oracle.logit_bound
