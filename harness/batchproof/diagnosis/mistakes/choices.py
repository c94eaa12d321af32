"""Mistakes in the choice of tokens from right logits: by whose parameters, by which stages in which
order, by what is known of the past, and by drafts."""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Request
from batchproof.checks.answers import of_each, slack
from batchproof.decoding.speculation import proposed_instead
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.diagnosis.reruns import Without
from batchproof.oracle.choosing import STAGES, Past, is_drawn, kept, past_of, sampling_of
from batchproof.oracle.oracle import centred

Given = Iterator[tuple[str, Tensor]]  # a mistake, and the logits that tokens are chosen from
BOUNDS: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # what lets all tokens through
AFTER = ("min_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty")
SATURATED = (255, 127, 63, 31, 15, 7, 1)  # the most that so many bits hold
Rated = tuple[frozenset[int], float]  # the outputs that a mistake does not give; how much it allows
Stage = Callable[[Tensor, Request, Past], Tensor]
PLAIN = "tokens are chosen without the request's parameters"


def _penalised(change: Callable[[Tensor, float], Tensor]) -> Stage:
    def stage(values: Tensor, request: Request, past: Past) -> Tensor:
        is_seen = (past.prompt + past.counts) > 0
        return torch.where(is_seen, change(values, sampling_of(request).repetition_penalty), values)

    return stage


def _each_time(values: Tensor, request: Request, past: Past) -> Tensor:
    return values - sampling_of(request).presence_penalty * past.counts


def _finite(name: str) -> Stage:
    def stage(values: Tensor, request: Request, past: Past) -> Tensor:
        changed = STAGES[name](values, request, past)
        return changed.masked_fill(changed == -torch.inf, -100.0)

    return stage


SLIPS: tuple[tuple[str, str, Stage], ...] = (
    *(
        (name, "leaves what it excludes a finite logit, such as -100", _finite(name))
        for name in ("allowed_token_ids", "min_tokens")
    ),
    ("repetition_penalty", "divides logits below 0 as well", _penalised(operator.truediv)),
    ("repetition_penalty", "multiplies logits above 0 as well", _penalised(operator.mul)),
    ("presence_penalty", "is taken off each time that a token is produced", _each_time),
)


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
        if not mistake and own.has_drafts and not sampling_of(own.request).changes_logits:
            missed |= _misfit(own, own.logits)
        yield Hypothesis(mistake, missed)
        if not own.has_drafts and _places(_is_off(own, own.logits)):
            return  # it is the logits that are wrong, not what is made of them
    yield from _cut_off(own, lambda values: (_not_given(own, values), 0.0))
    yield from _drafts(own) if own.has_drafts else ()


def _not_let_through(own: Answer, may_be: Tensor) -> Rated:
    return _places(~of_each(may_be, own.tokens)), float(may_be.sum(-1).double().log().sum())


def _places(is_missed: Tensor) -> frozenset[int]:
    return frozenset(is_missed.nonzero()[:, 0].tolist())


def _values(
    own: Answer,
    request: Request | None = None,
    stages: tuple[str, ...] = tuple(STAGES),
    pasts: Mapping[str, Past] | None = None,
    slips: Mapping[str, Stage] | None = None,
) -> Tensor:
    """Returns what the stages make of the logits, `(n, vocab)`; `pasts`: of those that know another,
    `slips`: of those that compute something else."""
    values = own.logits
    for name in stages:
        stage = (slips or {}).get(name, STAGES[name])
        values = stage(values, request or own.request, (pasts or {}).get(name, own.past))
    return values


def _given(own: Answer) -> Given:
    asked = sampling_of(own.request)
    active = [name for name in STAGES if name in asked.changed]
    yield "", _values(own)
    biases = asked.logit_bias
    for words, ordered in (("last", biases), ("first", biases[::-1])):
        if len(one_each := dict(ordered)) < len(biases):
            changed = replace(asked, logit_bias=tuple(one_each.items()))
            mistake = f"of a token that logit_bias names twice only the {words} counts"
            yield mistake, _values(own, replace(own.request, sampling=changed))
    yield from _slips(own)
    if active:
        yield PLAIN, own.logits
    for name in active if len(active) > 1 else ():
        yield f"{name} is left out", _values(own, stages=tuple(s for s in STAGES if s != name))
    yield from _of_others(own)
    knowing = tuple(name for name in active if name in AFTER)
    yield from _of_the_past(own, knowing) if knowing else ()
    for name in active:
        twice = tuple(each for s in STAGES for each in ((s, s) if s == name else (s,)))
        yield f"{name} is applied twice", _values(own, stages=twice)
    for name, place in permutations(active, 2):
        rest, is_later = [s for s in STAGES if s != name], active.index(name) < active.index(place)
        rest.insert(rest.index(place) + is_later, name)
        side = "behind" if is_later else "before"
        yield f"{name} is applied {side} {place}", _values(own, stages=tuple(rest))


def _slips(own: Answer) -> Given:
    """Yields the usual slips in the formula of one stage."""
    asked = sampling_of(own.request)
    for name, words, slip in SLIPS:
        if name in asked.changed:
            yield f"{name} {words}", _values(own, slips={name: slip})
    if asked.min_tokens > 255:
        short = replace(own.request, sampling=replace(asked, min_tokens=asked.min_tokens % 256))
        yield "min_tokens is kept in 8 bits", _values(own, short)
    held_back = own.request.eos_token_ids - {*own.tokens[: asked.min_tokens]}
    if held_back != own.request.eos_token_ids:
        changed = replace(own.request, eos_token_ids=held_back)
        yield "min_tokens does not hold back every EOS id", _values(own, changed)
    if "frequency_penalty" in asked.changed:
        seen = own.past.counts
        for num in (num for num in SATURATED if num < seen.max()):
            for words, counts in (
                (f"counts below 0 from {num + 1} on", seen - 2 * (num + 1) * (seen > num)),
                (f"counts a token no more than {num} times", seen.clamp(max=num)),
                (f"counts from 0 again at {num + 1}", seen % (num + 1)),
            ):
                past = replace(own.past, counts=counts)
                yield f"frequency_penalty {words}", _values(own, pasts={"frequency_penalty": past})
    for num in (1 << exponent for exponent in range(12)):
        if num < len(asked.logit_bias):
            first = replace(asked, logit_bias=asked.logit_bias[:num])
            words = f"only the first {num} entries of logit_bias count"
            yield words, _values(own, replace(own.request, sampling=first))


def _of_others(own: Answer) -> Given:
    """Yields choices by the parameters of each other request, by all and then by one field alone."""
    asked, places = sampling_of(own.request), {each: at for at, each in enumerate(own.peers)}
    for other in own.neighbours:
        its, whose = sampling_of(other.request), repr(other.request.request_id)
        if not its.changes_logits or its == asked:
            continue
        eos = own.request.eos_token_ids | other.request.eos_token_ids
        changed = replace(own.request, eos_token_ids=eos, sampling=its)
        yield f"tokens are chosen by the parameters of {whose}", _values(own, changed)
        away = places[other] - places[own]
        if other.call == own.call and abs(away) > 1:
            side = "behind" if away > 0 else "before"
            words = f"tokens are chosen by the parameters of the request {abs(away)} {side}"
            yield words, _values(own, changed)
        for name in set(STAGES) & {*its.changed}:
            one: dict[str, Any] = {name: getattr(its, name)}
            values = _values(own, replace(changed, sampling=replace(asked, **one)))
            yield f"{name} is that of {whose}", values


def _of_the_past(own: Answer, knowing: tuple[str, ...]) -> Given:
    """Yields choices in which one of these stages, or all of them, know another past."""
    pasts, pasts_of_others = [*_pasts(own)], [*_pasts_of_others(own)]
    nothing = replace(own.past, counts=0 * own.past.counts, num_produced=0 * own.past.num_produced)
    for names in (*((name,) for name in knowing), *([knowing] if len(knowing) > 1 else [])):
        stages = ", ".join(names)
        unseen = _values(own, pasts=dict.fromkeys(names, nothing))
        yield f"{stages}: no produced token is seen", unseen
        for words, past in pasts:
            yield f"{stages}: {words}", _values(own, pasts=dict.fromkeys(names, past))
        for whose, theirs, both in pasts_of_others:
            values = _values(own, pasts=dict.fromkeys(names, theirs))
            # It explains nothing where no token at all would do the same.
            if not torch.equal(values.argmax(-1), unseen.argmax(-1)):
                yield f"{stages}: the past is that of {whose}", values
            values = _values(own, pasts=dict.fromkeys(names, both))
            yield f"{stages}: tokens of {whose} count as well", values


def _pasts(own: Answer) -> Iterator[tuple[str, Past]]:
    num, counts, prompt = own.past.num_produced, own.past.counts, own.past.prompt
    newest = counts.diff(dim=0, prepend=counts[:1])
    firsts = [each.first for each in own.outputs]
    yield "the prompt is not seen", Past(0 * prompt, counts, num)
    yield "the prompt counts as produced", Past(prompt, counts + prompt, num + own.num_prompt)
    yield "the newest token is not seen", Past(prompt, counts - newest, num - 1)
    yield "the newest token counts twice", Past(prompt, counts + newest, num + 1)
    yield "all produced tokens count as prompt", Past(prompt + counts, 0 * counts, 0 * num)
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


def _forgotten(past: Past, resumed: list[int]) -> Past:
    num = past.num_produced - past.num_produced[resumed]
    return Past(past.prompt, past.counts - past.counts[resumed], num)


def _as_prompt(past: Past, resumed: list[int]) -> Past:
    old = past.counts[resumed]
    return replace(_forgotten(past, resumed), prompt=past.prompt + old)


def _counted_twice(past: Past, resumed: list[int]) -> Past:
    return replace(past, counts=past.counts + past.counts[resumed])


A_PART = "only the end of the prompt is seen, as behind a cached prefix or in its last chunk"
CUTS: dict[str, Callable[[Past, list[int]], Past]] = {
    "tokens from before a preemption are not seen": _forgotten,
    "tokens from before a preemption count as prompt": _as_prompt,
    "tokens from before a preemption count twice": _counted_twice,
}


def _cut_off(own: Answer, rated: Callable[[Tensor], Rated]) -> Iterator[Hypothesis]:
    """Yields mistakes at a preemption, or a part of the prompt: stages that know another past."""
    knowing = [name for name in AFTER if name in sampling_of(own.request).changed]
    pasts = {words: [cut(own.past, known) for known in _resumed(own)] for words, cut in CUTS.items()}
    ends = [own.request.prompt_token_ids[first:] for first in range(1, own.num_prompt)]
    vocab_size = own.past.counts.shape[1]
    seen = [torch.tensor(each).bincount(minlength=vocab_size).to(own.past.prompt) for each in ends]
    pasts[A_PART] = [replace(own.past, prompt=each) for each in seen]
    for words, tried in pasts.items() if knowing else ():
        values = (_values(own, pasts=dict.fromkeys(knowing, each)) for each in tried)
        found = min(map(rated, values), key=lambda each: (len(each[0]), each[1]), default=None)
        if found is not None:
            needs = Without.PREEMPTIONS if words in CUTS else None
            yield Hypothesis(f"{', '.join(knowing)}: {words}", *found, needs=needs)


def _not_given(own: Answer, values: Tensor) -> frozenset[int]:
    """Returns the outputs whose token is not the best choice from these logits."""
    off = values.amax(-1) - of_each(values, own.tokens)
    return _places(~(off <= 2 * slack(own.request, own.oracle)))


def _pasts_of_others(own: Answer) -> Iterator[tuple[str, Past, Past]]:
    """Yields whose it is, the past of each other request by then, and that together with one's own."""
    num, counts, prompt = own.past.num_produced, own.past.counts, own.past.prompt
    for other in own.others:
        its = past_of(other.request, (*other.tokens, 0), counts.shape[1])
        then = [len(other.tokens)] * len(num)
        if own.call == other.call:
            then = [sum(each.step < one.step for each in other.outputs) for one in own.outputs]
        both = Past(prompt + its.prompt, counts + its.counts[then], num)
        yield repr(other.request.request_id), Past(its.prompt, its.counts[then], num), both


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
    if active:
        behind = values.masked_fill(right, -torch.inf).argmax(-1, keepdim=True)
        words = f"{' and '.join(active)} let one token too many through"
        yield words, right.scatter(1, behind, values.gather(1, behind) > -torch.inf)
    for name in active:
        yield f"{name} is left out", let_through(**{name: BOUNDS[name]})
    yield "the temperature is applied twice", let_through(temperature=asked.temperature**2)
    yield "the temperature comes behind the bounds", let_through(temperature=1.0)
    for mistake, changed, *_ in _given(own):
        if mistake not in ("", PLAIN):
            yield mistake, kept(changed, asked, off)
    for other in (each for each in own.others if is_drawn(each.request)):
        its, whose = sampling_of(other.request), repr(other.request.request_id)
        for name in ("temperature", *BOUNDS):
            yield f"{name} is that of {whose}", let_through(**{name: getattr(its, name)})


def _drafts(own: Answer) -> Iterator[Hypothesis]:
    """Yields mistakes with drafts: those that stay in the answer, a token lost or doubled, and those
    that stay in the cache."""
    agreement = own.calls[own.call].workload.config.draft_agreement
    tokens, right, vocab_size = own.tokens, own.oracle.choices(own.request), own.logits.shape[1]
    for words, chosen in (
        ("drafts stay that the model would not have chosen", _values(own).argmax(-1).tolist()),
        ("rejected drafts stay behind the tokens in their place", [*own.ids[-1:], *tokens[:-1]]),
    ):
        if agreement is not None:
            drafts = [proposed_instead(token, vocab_size, agreement) for token in chosen]
            yield Hypothesis(words, _places(torch.tensor(drafts) != torch.tensor(tokens)))
    for at in range(len(tokens)):
        for words, answer in (
            ("is missing", right[:at] + right[at + 1 :]),
            ("stands twice", right[: at + 1] + right[at:]),
        ):
            got = tokens[: len(answer)]
            is_shifted = got == answer[: len(got)] != right[: len(got)]
            missed = frozenset(() if is_shifted else range(len(tokens)))
            yield Hypothesis(f"the token of step {at} {words}", missed)
    if sampling_of(own.request).changes_logits:
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
