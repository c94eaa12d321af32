"""Mistakes in what is returned beside right tokens. In logprobs: of which row, token or distribution
they are, and how ranks are counted; in logits: of which stage or request they are."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from batchproof.api import TokenLogprobs
from batchproof.checks.answers import of_each, slack
from batchproof.checks.logprobs import entry_findings
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.findings.causes import Cause
from batchproof.oracle.choosing import STAGES, is_drawn, processed, sampling_of
from batchproof.oracle.oracle import centred

Entries = Sequence[TokenLogprobs | None]
MISSING = frozenset({"missing"})


class Told(NamedTuple):
    """What was given for n tokens, and what it is compared with."""

    places: list[int]  # of the tokens in prompt and answer
    tokens: list[int]
    given: list[TokenLogprobs]
    num_top: list[int]
    logits: Tensor  # `(n, vocab)`

    def misses(self, bound: float) -> frozenset[tuple[int, str]]:
        rows = zip(*self[:4], self.logits.log_softmax(-1), strict=True)
        return frozenset(
            (place, finding.rule.id)
            for place, token, given, num_top, row in rows
            for finding in entry_findings("", {"where": ""}, token, given, row, bound, num_top)
        )


def logprob_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; places are those of tokens in prompt and answer, with the broken rule."""
    bound, given = 2 * own.oracle.logit_bound, own.completion.logprobs or ()
    told = _told(own, given)
    yield Hypothesis("", MISSING if told is None else told.misses(bound))
    for mistake, aligned in _misaligned(own, given) if told is None else ():
        its = _told(own, aligned, may_lack=True)
        is_right = its is not None and not its.misses(bound)
        yield Hypothesis(mistake, frozenset() if is_right else MISSING)
    for mistake, other in _others(own, told) if told and told.places else ():
        cause = Cause.PRECISION if "float16" in mistake else None
        yield Hypothesis(mistake, other.misses(bound), cause=cause)


def _told(own: Answer, answer: Entries, may_lack: bool = False) -> Told | None:
    """Returns what was given, but for tokens whose entry is None; None if there are more or fewer
    entries than tokens or, unless it `may_lack` some, a prompt token has none."""
    asked, num, prompt = sampling_of(own.request), own.num_prompt, own.completion.prompt_logprobs
    has_each = prompt is None or (len(prompt) == num and None not in prompt[1:])
    has_all = asked.logprobs is None or len(answer) == len(own.tokens)
    if not has_all or not (has_each or may_lack):
        return None
    entries = [*(*(prompt or ()), *[None] * num)[:num], *answer]
    places = [at for at, each in enumerate(entries) if each is not None and at]
    given = [each for each in entries[1:] if each is not None]
    num_top = [(asked.prompt_logprobs if at < num else asked.logprobs) or 0 for at in places]
    behind = own.behind[[at - 1 for at in places]]
    return Told(places, [own.ids[at] for at in places], given, num_top, behind)


def _misaligned(own: Answer, given: Entries) -> Iterator[tuple[str, Entries]]:
    """Yields what was given without the entries that are too many, and None for those that lack."""
    more, prompt = len(given) - len(own.tokens), own.completion.prompt_logprobs or ()
    lacking = [at for at, each in enumerate(prompt[: own.num_prompt]) if at and each is None]
    if lacking:
        yield f"prompt tokens {lacking[0]} to {lacking[-1]} have none", given
    if prompt and len(prompt) != own.num_prompt:
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
    ends = {each.num_resumed - 1 for each in own.outputs}  # the last outputs before a preemption
    for at in sorted(range(len(given)), key=lambda at: at not in ends) if more == 1 else ():
        where = "the last before a preemption" if at in ends else f"that of step {at}"
        yield f"one is there twice, {where}", [*given[:at], *given[at + 1 :]]


def _others(own: Answer, told: Told) -> Iterator[tuple[str, Told]]:
    yield from ((f"they are {words}", told._replace(logits=each)) for words, each in _rows(own, told))
    ids = (*own.ids, own.ids[-1])
    for words, by in (("before", -1), ("behind", 1)):
        tokens = [ids[at + by] for at in told.places]
        yield f"they are of the token {words} the one chosen", told._replace(tokens=tokens)
    ordered = told.logits.sort(descending=True).values
    yield "they are looked up in the sorted logprobs", told._replace(logits=ordered)
    for other in own.others:
        places, whose = [min(at, len(other.ids) - 1) for at in told.places], other.request.request_id
        its = told._replace(tokens=[other.ids[at] for at in places])
        yield (
            f"they are those of {whose!r}",
            its._replace(logits=other.behind[[at - 1 for at in places]]),
        )
    for words, by in (
        ("ranks are counted from 0", 1),
        ("ranks are counted from 2: the token itself is counted", -1),
    ):
        moved = [each._replace(rank=each.rank and each.rank + by) for each in told.given]
        yield words, told._replace(given=moved)


def _rows(own: Answer, told: Told) -> Iterator[tuple[str, Tensor]]:
    """Yields the logits that they may have been taken from, `(n, vocab)`; NaN where there are none."""
    asked, right, places = sampling_of(own.request), told.logits, torch.tensor(told.places)
    is_of_answer = places >= own.num_prompt

    def of_answer(values: Tensor) -> Tensor:
        mixed = right.clone()
        mixed[is_of_answer] = values[places[is_of_answer] - own.num_prompt]
        return mixed

    values = processed(own.logits, own.request, own.tokens)
    if asked.changes_logits:
        yield "of the logits behind the parameters", of_answer(values)
    if asked.temperature > 0:
        yield "of the logits divided by the temperature", of_answer(own.logits / asked.temperature)
    padded = torch.nn.functional.pad(own.behind, (0, 0, 1, 1), value=torch.nan)
    yield "of the position before", padded[places - 1]
    yield "of the position behind", padded[places + 1]
    yield from ((words, of_answer(rows)) for words, rows in _of_batch(own))
    for words, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        yield f"computed from logits in {words}", right.to(dtype).double()


def _of_batch(own: Answer) -> Iterator[tuple[str, Tensor]]:
    """Yields the logits of other rows of each token's step: those beside it, and each request's."""
    records = own.calls[own.call].schedule()
    peers = {each.request.request_id: each for each in own.peers if each.call == own.call}
    beside = {"before in the batch": -1, "behind in the batch": 1}
    for words in (*beside, *(f"of {name!r}" for name in peers)):
        rows = torch.full_like(own.logits, torch.nan)
        for at, each in enumerate(own.outputs):
            batch = records[each.step].rows if each.step < len(records) else ()
            for place, row in enumerate(batch):
                is_beside = words in beside and place == (each.row + beside[words]) % len(batch)
                peer, end = peers.get(row.request_id), row.context_len + row.query_len
                if peer and end <= len(peer.ids) and (is_beside or words == f"of {row.request_id!r}"):
                    rows[at] = peer.behind[end - 1]
        yield f"of the row {words}", rows


def returned_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; places are output steps."""
    given, values = own.completion.logits, processed(own.logits, own.request, own.tokens)
    regret = values.amax(-1) - of_each(values, own.tokens)
    is_chosen = is_drawn(own.request) or not bool((regret > 2 * slack(own.request, own.oracle)).any())
    if given is None or given.shape != own.logits.shape or not is_chosen:
        yield Hypothesis("", frozenset())
        return
    shown, bound = centred(given), 1.5 * own.oracle.logit_bound

    def missed(rows: Tensor) -> frozenset[int]:
        off = (shown - centred(rows)).abs().amax(-1)
        return frozenset((~(off <= bound)).nonzero()[:, 0].tolist())

    wrong = missed(own.logits)
    yield Hypothesis("", wrong)
    values = own.logits
    for name, stage in STAGES.items():
        values = stage(values, own.request, own.past)
        if name in sampling_of(own.request).changed:
            yield Hypothesis(f"the logits returned are those behind {name}", missed(values))
    whose = {f"those of {each.request.request_id!r}": [each] for each in own.others}
    for words, others in (*whose.items(), ("those of other requests", own.others)):
        rows = centred(torch.cat([own.logits, *(each.logits for each in others)]))
        of_none = (at for at in wrong if not ((rows - shown[at]).abs().amax(-1) <= bound).any())
        mistake = f"the logits returned were overwritten by {words}"
        yield Hypothesis(mistake, frozenset(of_none), cause=Cause.ROUTING)
