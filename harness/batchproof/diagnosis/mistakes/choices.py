"""Mistakes in the choice of tokens from right logits: by whose parameters, by which stages in which
order, by what is known of the past, and by drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, permutations
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Request, SamplingParams
from batchproof.checks.answers import of_each, slack
from batchproof.decoding.speculation import proposed_instead
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.oracle.choosing import (
    AS_IT_IS,
    STAGES,
    Past,
    is_drawn,
    kept,
    past_of,
    sampling_of,
)
from batchproof.oracle.oracle import centred

Given = tuple[str, Tensor]  # a mistake, and the logits that tokens are then chosen from
BOUNDS: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # what lets all tokens through
AFTER = ("min_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty")


def choice_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; places are output steps."""
    if is_drawn(own.request):
        for mistake, may_be in _drawn(own):
            is_missed = ~of_each(may_be, own.tokens)
            yield _hypothesis(mistake, is_missed, float(may_be.sum(-1).double().log().sum()))
        return
    for mistake, values in _given(own):
        off = values.amax(-1) - of_each(values, own.tokens)
        is_missed = ~(off <= 2 * slack(own.request, own.oracle))
        if not mistake and own.calls[own.call].workload.config.num_speculative_tokens:
            is_plain = not sampling_of(own.request).changes_logits
            is_missed[sorted(_wrong(own, values) if is_plain else ())] = True
        yield _hypothesis(mistake, is_missed)
    yield from _drafts(own)


def _hypothesis(mistake: str, is_missed: Tensor, width: float = 0.0) -> Hypothesis:
    return Hypothesis(mistake, frozenset(is_missed.nonzero()[:, 0].tolist()), width)


def _values(
    own: Answer,
    request: Request,
    stages: tuple[str, ...] = tuple(STAGES),
    pasts: dict[str, Past] | None = None,
) -> Tensor:
    """Returns what these stages make of the logits, `(n, vocab)`; `pasts`: of stages with another."""
    values = own.logits
    for name in stages:
        values = STAGES[name](values, request, (pasts or {}).get(name, own.past))
    return values


def _with(request: Request, sampling: SamplingParams | None) -> Request:
    return replace(request, sampling=sampling)


def _given(own: Answer) -> Iterator[Given]:
    request, asked = own.request, sampling_of(own.request)
    yield "", _values(own, request)
    active = tuple(name for name in STAGES if name in asked.changed)
    if asked.changes_logits:
        yield "tokens are chosen without the request's parameters", own.logits
        for name in active if len(active) > 1 else ():
            yield f"{name} is left out", _values(own, request, tuple(s for s in STAGES if s != name))
    yield from _of_others(own)
    yield from _with_other_pasts(own, tuple(name for name in active if name in AFTER))
    for name in active:
        twice = tuple(chain.from_iterable((s, s) if s == name else (s,) for s in STAGES))
        yield f"{name} is applied twice", _values(own, request, twice)
    for name, place in permutations(active, 2):
        rest = [stage for stage in STAGES if stage != name]
        is_later = [*STAGES].index(name) < [*STAGES].index(place)
        rest.insert(rest.index(place) + is_later, name)
        words = f"{name} is applied {'behind' if is_later else 'before'} {place}"
        yield words, _values(own, request, tuple(rest))


def _of_others(own: Answer) -> Iterator[Given]:
    """Yields choices by the parameters of each other request, by all and then by one field alone."""
    asked, seen = sampling_of(own.request), {sampling_of(own.request)}
    for other in own.others:
        its, whose = sampling_of(other.request), repr(other.request.request_id)
        if its in seen or its == AS_IT_IS:
            continue
        seen.add(its)
        eos = own.request.eos_token_ids | other.request.eos_token_ids
        changed = replace(_with(own.request, its), eos_token_ids=eos)
        yield f"tokens are chosen by the parameters of {whose}", _values(own, changed)
        for name in (n for n in STAGES if n in its.changed and getattr(its, n) != getattr(asked, n)):
            one = replace(asked, **{name: getattr(its, name)})
            yield f"{name} is that of {whose}", _values(own, _with(changed, one))


def _with_other_pasts(own: Answer, active: tuple[str, ...]) -> Iterator[Given]:
    """Yields choices by stages that know another past: all of them, or one alone."""
    groups = [*((name,) for name in active), *([active] if len(active) > 1 else [])]
    for words, past in _pasts(own) if active else ():
        for names in groups:
            values = _values(own, own.request, pasts=dict.fromkeys(names, past))
            yield f"{', '.join(names)}: {words}", values


def _pasts(own: Answer) -> Iterator[tuple[str, Past]]:
    past, num = own.past, own.past.num_produced
    newest = torch.zeros_like(past.counts)
    newest[1:] = past.counts[1:] - past.counts[:-1]
    without = torch.zeros_like(past.prompt)
    yield "the prompt is not seen", replace(past, prompt=without)
    as_produced = past.counts + past.prompt
    yield "the prompt counts as produced", Past(past.prompt, as_produced, num + own.num_prompt)
    yield "the newest token is not seen", Past(past.prompt, past.counts - newest, num - 1)
    yield "the newest token counts twice", Past(past.prompt, past.counts + newest, num + 1)
    for words, starts in (
        ("tokens from before the preemption count as prompt", [o.num_resumed for o in own.outputs]),
        ("all produced tokens count as prompt", list(range(len(own.outputs)))),
    ):
        before = past.counts[starts]
        yield words, Past(past.prompt + before, past.counts - before, num - num[starts])
    starts = [each.first for each in own.outputs]
    yield "tokens of the same step are not seen", Past(past.prompt, past.counts[starts], num[starts])
    for other in own.others:
        its = past_of(other.request, (*other.tokens, 0), own.logits.shape[1])
        counts, whose = its.counts[_by_then(own, other)], other.request.request_id
        yield f"the past is that of {whose!r}", replace(its, counts=counts, num_produced=num)
        both = replace(past, prompt=past.prompt + its.prompt, counts=past.counts + counts)
        yield f"tokens of {whose!r} count as well", both


def _by_then(own: Answer, other: Answer) -> list[int]:
    """Returns how many tokens the other request had when each of the own ones was chosen."""
    if own.call != other.call:
        return [len(other.tokens)] * len(own.tokens)
    return [sum(each.step < one.step for each in other.outputs) for one in own.outputs]


def _drawn(own: Answer) -> Iterator[Given]:
    """Yields which tokens a mistake lets through, bool `(n, vocab)`."""
    request, asked = own.request, sampling_of(own.request)
    values, off = _values(own, request), slack(own.request, own.oracle)
    yield "", kept(values, asked, off)
    is_best = own.logits >= own.logits.amax(-1, keepdim=True) - 2 * off
    yield "tokens are chosen without the request's parameters", is_best
    for name, free in BOUNDS.items():
        if name in asked.changed:
            changed = replace(asked, **{name: free})
            yield f"{name} is left out", kept(values, changed, off)
    for first in (n for n in BOUNDS if len({*asked.changed} & {*BOUNDS}) > 1):
        alone: dict[str, Any] = {name: free for name, free in BOUNDS.items() if name != first}
        is_let, rest = (
            kept(values, replace(asked, **alone), off),
            replace(asked, **{first: BOUNDS[first]}),
        )
        inside = values.masked_fill(~is_let, -torch.inf)
        yield f"{first} is applied before the others", kept(inside, rest, off)
        yield (
            f"{first} is cut from all tokens, not from what the others leave",
            is_let & kept(values, rest, off),
        )
    for words, factor in (("is applied twice", asked.temperature), ("comes behind the bounds", 1.0)):
        changed = replace(asked, temperature=asked.temperature * factor if factor != 1.0 else 1.0)
        yield f"the temperature {words}", kept(values, changed, off)
    for mistake, changed_values in _given(own):
        if mistake and changed_values is not own.logits:
            yield mistake, kept(changed_values, asked, off)
    for other in own.others:
        its, whose = sampling_of(other.request), repr(other.request.request_id)
        for name in ("temperature", *BOUNDS):
            value = getattr(its, name)
            if is_drawn(other.request) and value != getattr(asked, name):
                yield f"{name} is that of {whose}", kept(values, replace(asked, **{name: value}), off)
    yield "nothing is excluded", torch.ones_like(values, dtype=torch.bool)


def _drafts(own: Answer) -> Iterator[Hypothesis]:
    """Yields mistakes with drafts, if there are any."""
    config, vocab_size = own.calls[own.call].workload.config, own.logits.shape[1]
    if not config.num_speculative_tokens:
        return
    tokens, agreement = own.tokens, config.draft_agreement
    best = _values(own, own.request).argmax(-1).tolist()
    for words, chosen in (
        ("drafts stay that the model would not have chosen", best),
        ("rejected drafts stay behind the tokens in their place", [*own.ids[-1:], *tokens[:-1]]),
    ):
        if agreement is not None:
            drafts = [proposed_instead(token, vocab_size, agreement) for token in chosen]
            yield _hypothesis(words, torch.tensor(drafts) != torch.tensor(tokens))
    right = own.oracle.choices(own.request)
    for at in range(len(tokens)):
        for words, answer in (
            ("is missing", right[:at] + right[at + 1 :]),
            ("stands twice", right[: at + 1] + right[at:]),
        ):
            got = tokens[: len(answer)]
            is_shifted = got == answer[: len(got)] != right[: len(got)]
            missed = frozenset(() if is_shifted else range(len(tokens)))
            yield Hypothesis(f"the token of step {at} {words}", missed)
    yield from _fed_drafts(own, agreement)


def _fed_drafts(own: Answer, agreement: float | None) -> Iterator[Hypothesis]:
    """Yields a cache that keeps rejected drafts in place of the tokens before what is wrong: those of
    the draft model or, of n-grams, whichever token of the sequence explains it."""
    fed, is_fed, num = list(own.tokens), set[int](), own.num_prompt
    wrong = sorted(_wrong(own, own.logits))
    while wrong and wrong[0] > 0 and wrong[0] - 1 not in is_fed:
        at = wrong[0] - 1
        instead = {*own.ids[: num + at]} - {fed[at]}
        if agreement is not None:
            instead = {proposed_instead(fed[at], own.logits.shape[1], agreement)}
        tries = [(*fed[:at], token, *fed[at + 1 :]) for token in sorted(instead)]
        asked = [(own.request.prompt_token_ids, each) for each in tries]
        found = [
            (_wrong(own, rows), each)
            for rows, each in zip(own.oracle.score_all(asked), tries, strict=True)
        ]
        misses, fed_now = min(found, key=lambda each: min(each[0], default=len(fed)) * -1)
        is_fed.add(at)
        fed, wrong = list(fed_now), sorted(misses)
    words = f"the cache keeps a rejected draft in place of the token of step {min(is_fed, default=0)}"
    yield Hypothesis(words, frozenset(wrong))


def _wrong(own: Answer, logits: Tensor) -> set[int]:
    """Returns the steps whose token, or logits as far as they were given, these logits do not give."""
    off = logits.amax(-1) - of_each(logits, own.tokens) > 2 * own.oracle.logit_bound
    given = own.completion.logits
    if given is not None and given.shape == logits.shape:
        off |= (centred(given) - centred(logits)).abs().amax(-1) > 1.5 * own.oracle.logit_bound
    return {*off.nonzero()[:, 0].tolist()}
