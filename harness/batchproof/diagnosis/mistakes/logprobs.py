"""Mistakes in logprobs: of which row, token or distribution they are, and how ranks are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from batchproof.api import TokenLogprobs
from batchproof.checks.logprobs import entry_findings
from batchproof.decoding.speculation import proposed_instead
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.findings.causes import Cause
from batchproof.oracle.choosing import processed, sampling_of

Entries = Sequence[TokenLogprobs | None]
Edit = Callable[[TokenLogprobs], TokenLogprobs]


@dataclass(frozen=True, slots=True)
class Told:
    """What was given for n tokens. `places`: in prompt and answer; `logits`: those that tell of them,
    `(n, vocab)`; `num_top`: how many of the likeliest are asked for."""

    places: tuple[int, ...]
    tokens: tuple[int, ...]
    given: tuple[TokenLogprobs, ...]
    num_top: tuple[int, ...]
    logits: Tensor

    def misses(self, bound: float) -> frozenset[tuple[int, str]]:
        rows = self.logits.log_softmax(-1)
        each = zip(self.places, self.tokens, self.given, rows, self.num_top, strict=True)
        return frozenset(
            (place, finding.rule.id)
            for place, token, one, row, num_top in each
            for finding in entry_findings("", {"where": ""}, token, one, row, bound, num_top)
        )

    def edited(self, edit: Edit) -> Told:
        return replace(self, given=tuple(map(edit, self.given)))


def logprob_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; places are those of a token in prompt and answer, with the broken rule."""
    bound, told = 2 * own.oracle.logit_bound, _told(own, own.completion.logprobs)
    yield Hypothesis("", frozenset({"missing"}) if told is None else told.misses(bound))
    if told is None:
        for mistake, given in _misaligned(own, own.completion.logprobs or ()):
            its = _told(own, given, may_lack=True)
            is_right = its is not None and not its.misses(bound)
            yield Hypothesis(mistake, frozenset() if is_right else frozenset({"missing"}))
        return
    for mistake, its in _of_others(own, told) if told.places else ():
        cause = Cause.PRECISION if "float16" in mistake else None
        yield Hypothesis(mistake, its.misses(bound), cause=cause)


def _told(own: Answer, answer: Entries | None, may_lack: bool = False) -> Told | None:
    """Returns what was given, but for tokens whose entry is None; None if there are more or fewer
    entries than tokens or, unless it `may_lack` some, a prompt token has none."""
    asked, num_prompt = sampling_of(own.request), own.num_prompt
    prompt = own.completion.prompt_logprobs
    if prompt is not None and (len(prompt) != num_prompt or None in prompt[1:]):
        if not may_lack:
            return None
        prompt = (*prompt, *[None] * num_prompt)[:num_prompt]
    if asked.logprobs is not None and len(answer or ()) != len(own.tokens):
        return None
    entries = [*(prompt or [None] * num_prompt), *(answer or ())]
    places = tuple(at for at, each in enumerate(entries) if each is not None and at)
    return Told(
        places,
        tuple(own.ids[at] for at in places),
        tuple(each for each in entries[1:] if each is not None),
        tuple((asked.prompt_logprobs if at < num_prompt else asked.logprobs) or 0 for at in places),
        own.behind[[at - 1 for at in places]],
    )


def _misaligned(own: Answer, given: Entries) -> Iterator[tuple[str, Entries]]:
    """Yields what was given with entries removed, or with None where there is none."""
    more = len(given) - len(own.tokens)
    prompt = own.completion.prompt_logprobs or ()
    lacking = [at for at, each in enumerate(prompt[: own.num_prompt]) if at and each is None]
    if lacking:
        yield f"prompt tokens {lacking[0]} to {lacking[-1]} have none", given
    yield f"the prompt has {len(prompt)} entries", given
    if not given and sampling_of(own.request).logprobs == 0:
        yield "a request for logprobs=0 is taken for none", [None] * len(own.tokens)
    if more < 0:
        yield "the last token has none", [*given, *[None] * -more]
        yield "the first token has none", [*[None] * -more, *given]
    rows = (row for record in own.calls[own.call].schedule() for row in record.rows)
    chunks = [row for row in rows if row.request_id == own.request.request_id and not row.is_sampled]
    if 0 < more == len(chunks):
        yield "each chunk of the prompt has one as well", given[more:]
    resumed = {each.num_resumed for each in own.outputs} - {0}
    for at in sorted(range(len(given)), key=lambda at: at + 1 not in resumed) if more == 1 else ():
        where = "the last before a preemption" if at + 1 in resumed else f"that of step {at}"
        yield f"one is there twice, {where}", [*given[:at], *given[at + 1 :]]
    if more > 1:
        yield "there are more before those of the answer", given[more:]
        yield "there are more behind those of the answer", given[:-more]
    for at in range(len(own.tokens)) if more == -1 else ():
        yield f"the token of step {at} has none", [*given[:at], None, *given[at:]]


def _of_others(own: Answer, told: Told) -> Iterator[tuple[str, Told]]:
    yield from ((f"they are {words}", replace(told, logits=each)) for words, each in _rows(own, told))
    ids = (*own.ids, own.ids[-1])
    for words, by in (("before", -1), ("behind", 1)):
        tokens = tuple(ids[at + by] for at in told.places)
        yield f"they are of the token {words} the one chosen", replace(told, tokens=tokens)
    ordered = told.logits.sort(descending=True).values
    yield "they are looked up in the sorted logprobs", replace(told, logits=ordered)
    for other in own.others:
        places = [min(at, len(other.ids) - 1) for at in told.places]
        its = replace(told, tokens=tuple(other.ids[at] for at in places))
        rows = other.behind[[at - 1 for at in places]]
        yield f"they are those of {other.request.request_id!r}", replace(its, logits=rows)
        num_top = sampling_of(other.request).logprobs
        if num_top is not None and num_top not in told.num_top:
            words = f"as many of the likeliest are given as {other.request.request_id!r} asks for"
            yield words, replace(told, num_top=(num_top,) * len(told.places))
    yield from ((words, told.edited(edit)) for words, edit in _edits(told.logits.shape[1]))


def _edits(vocab_size: int) -> Iterator[tuple[str, Edit]]:
    """Yields what makes wrong entries right again."""
    for words, shift in (("from 0", 1), ("from 2: the token itself is counted", -1)):
        yield f"ranks are counted {words}", lambda e, by=shift: e._replace(rank=e.rank and e.rank + by)
    yield (
        "ranks are counted from the unlikeliest",
        lambda e: e._replace(rank=vocab_size + 1 - (e.rank or 0)),
    )
    yield (
        "the likeliest are not sorted",
        lambda e: e._replace(top=tuple(sorted(e.top, key=lambda t: -t[1]))),
    )
    for words, unit in (("2", log(2)), ("10", log(10))):
        yield f"logarithms are to the base of {words}", lambda e, by=unit: _mapped(e, lambda x: x * by)
    yield "they are probabilities", lambda e: _mapped(e, lambda x: log(x) if x > 0 else -torch.inf)


def _mapped(entry: TokenLogprobs, change: Callable[[float], float]) -> TokenLogprobs:
    top = tuple((token, change(value)) for token, value in entry.top)
    return entry._replace(logprob=change(entry.logprob), top=top)


def _rows(own: Answer, told: Told) -> Iterator[tuple[str, Tensor]]:
    """Yields the logits that they may have been taken from, `(n, vocab)`; NaN where there are none."""
    asked, right = sampling_of(own.request), told.logits
    if asked.changes_logits:
        values = processed(own.logits, own.request, own.tokens)
        yield "of the logits behind the parameters", _answers(own, told, values)
        if asked.temperature > 0:
            yield (
                "of these, divided by the temperature",
                _answers(own, told, values / asked.temperature),
            )
    if asked.temperature > 0:
        yield (
            "of the logits divided by the temperature",
            _answers(own, told, own.logits / asked.temperature),
        )
    padded = torch.nn.functional.pad(own.behind, (0, 0, 1, 1), value=torch.nan)
    yield "of the position before", padded[[at - 1 for at in told.places]]
    yield "of the position behind", padded[[at + 1 for at in told.places]]
    firsts = [each.first for each in own.outputs]
    yield "of the first token of their step", _answers(own, told, own.logits[firsts])
    yield from ((words, _answers(own, told, rows)) for words, rows in _of_batch(own))
    agreement = own.calls[own.call].workload.config.draft_agreement
    if agreement is not None:
        proposed = [
            proposed_instead(token, right.shape[1], agreement) for token in range(right.shape[1])
        ]
        drafted = torch.empty_like(right).index_copy(1, torch.tensor(proposed), right)
        yield "of the draft", drafted
    for words, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        yield f"computed from logits in {words}", right.to(dtype).double()
        yield f"rounded to {words}", right.log_softmax(-1).to(dtype).double()


def _answers(own: Answer, told: Told, values: Tensor) -> Tensor:
    """Returns the logits with others, `(len(tokens), vocab)`, for the tokens of the answer."""
    rows = told.logits.clone()
    for number, at in enumerate(told.places):
        if at >= own.num_prompt:
            rows[number] = values[at - own.num_prompt]
    return rows


def _of_batch(own: Answer) -> Iterator[tuple[str, Tensor]]:
    """Yields the logits of other rows of each token's step: those beside it, and each request's."""
    records = own.calls[own.call].schedule()
    peers = {each.request.request_id: each for each in own.peers if each.call == own.call}
    for words, by in (("before", -1), ("behind", 1)):
        rows = torch.full_like(own.logits, torch.nan)
        for at, each in enumerate(own.outputs):
            batch = records[each.step].rows if each.step < len(records) else ()
            row = batch[(each.row + by) % len(batch)] if batch else None
            peer = peers.get(row.request_id) if row else None
            if (
                row is not None
                and peer is not None
                and row.context_len + row.query_len <= len(peer.ids)
            ):
                rows[at] = peer.behind[row.context_len + row.query_len - 1]
        yield f"of the row {words} in the batch", rows
    for name, peer in peers.items():
        rows = torch.full_like(own.logits, torch.nan)
        place = {each.step: at for at, each in reversed([*enumerate(peer.outputs)])}
        for at, each in enumerate(own.outputs):
            if peer is not own and each.step in place:
                rows[at] = peer.logits[place[each.step]]
        yield f"of the row of {name!r}", rows
