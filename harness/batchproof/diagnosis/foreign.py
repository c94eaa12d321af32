"""What belongs to somebody else: a live neighbour's keys, a former tenant's, another row's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.mistake import (
    Mistake,
    Suspect,
    among_own,
    distance,
    fed_by_then,
)
from batchproof.diagnosis.tape import Tape
from batchproof.findings.causes import Cause


def leak_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Keys of sequences that share a step."""
    tape, right = suspect.tape, suspect.honest.visible
    gap, now = distance(tape), fed_by_then(tape) & _present(tape)
    window = torch.ones_like(right) if suspect.window is None else gap < suspect.window
    yield suspect.seeing(
        Cause.LEAK,
        "the mask compares positions only: all keys of the step up to one's own position are seen",
        now & (gap >= 0) & window,
    )
    same_step = tape.step[:, None] == tape.step
    earlier = same_step & (tape.packed <= tape.packed[:, None])
    yield suspect.seeing(
        Cause.LEAK,
        "the mask is causal over the whole packed row: earlier rows are seen",
        right | earlier,
    )
    row_before = now & (_row_of(tape) < tape.row[:, None])
    yield suspect.seeing(Cause.LEAK, "all keys of earlier rows are seen", right | row_before)
    yield suspect.seeing(
        Cause.LEAK,
        "no mask keeps the sequences apart: all keys of the step are seen",
        right | (now & ~among_own(tape)),
    )
    for number, fed in enumerate(tape.sequences):
        theirs = now & (tape.seq == number)
        if number == suspect.seq or not bool(theirs[suspect.is_own].any()):
            continue
        name = fed.request.request_id
        last = tape.index == _length_by_then(tape, number)[:, None] - 1
        yield suspect.seeing(Cause.LEAK, f"all keys of {name!r} are seen", right | theirs)
        yield suspect.seeing(
            Cause.LEAK,
            f"the keys of {name!r} up to one's own position are seen",
            right | (theirs & (gap >= 0) & window),
        )
        yield suspect.seeing(
            Cause.LEAK, f"the first key of {name!r} is seen", right | (theirs & (tape.index == 0))
        )
        yield suspect.seeing(Cause.LEAK, f"the last key of {name!r} is seen", right | (theirs & last))


def _present(tape: Tape) -> Tensor:
    """Has the key's sequence a row in the query's step?"""
    num_steps = int(tape.step.max()) + 1
    here = torch.zeros(num_steps, len(tape.sequences), dtype=torch.bool)
    here[tape.step, tape.seq] = True
    return here[tape.step[:, None], tape.seq[None, :]]


def _row_of(tape: Tape) -> Tensor:
    """`(query, key)`: the row that the key's sequence has in the query's step."""
    rows = torch.full((int(tape.step.max()) + 1, len(tape.sequences)), 1 << 30)
    rows[tape.step, tape.seq] = tape.row
    return rows[tape.step[:, None], tape.seq[None, :]]


def _length_by_then(tape: Tape, number: int) -> Tensor:
    """Per query: keys that this sequence has, those of the query's own step included."""
    mine = (tape.seq == number) & (tape.step <= tape.step[:, None])
    return torch.where(mine, tape.index + 1, 0).amax(dim=1)


def stale_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Keys and tokens of sequences that were gone before."""
    tape, right = suspect.tape, suspect.honest.visible
    own = suspect.is_own
    start = int(tape.step[own].min())
    seen_now = (tape.context_len + tape.query_len)[:, None]
    is_later = (tape.context_len > 0)[:, None]
    mine = tape.sequences[suspect.seq]
    for number, fed in reversed(list(enumerate(tape.sequences))):
        theirs = tape.seq == number
        if number == suspect.seq or not bool(theirs.any()) or int(tape.step[theirs].max()) >= start:
            continue
        name = f"{fed.request.request_id!r}" + (
            f" of call {fed.call + 1}" if fed.call != mine.call else ""
        )
        beyond = right | (own[:, None] & theirs & (tape.index >= seen_now))
        yield suspect.seeing(
            Cause.STALE, f"keys of the former tenant {name} are seen behind one's own", beyond
        )
        decodes = right | (own[:, None] & theirs & (tape.index >= seen_now) & is_later)
        yield suspect.seeing(
            Cause.STALE,
            f"keys of the former tenant {name} are seen behind one's own, in decodes",
            decodes,
        )
        everything = right | (own[:, None] & theirs)
        yield suspect.seeing(Cause.STALE, f"all keys of the former tenant {name} are seen", everything)
        kept = torch.tensor(fed.token_ids)
        overlaid = own & (tape.index < fed.num_prompt_tokens) & (tape.index < mine.num_prompt_tokens)
        token = torch.where(overlaid, kept[tape.index.clamp(max=len(kept) - 1)], tape.token)
        yield suspect.fed(
            Cause.STALE, f"the prompt of {name} is fed again, as far as it reaches", token
        )
        last = overlaid & (tape.index == 0)
        token = torch.where(last, kept[tape.index.clamp(max=len(kept) - 1)], tape.token)
        yield suspect.fed(Cause.STALE, f"the first token of {name} is fed in place of one's own", token)


def routing_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """The logits of another row of the same step."""
    tape = suspect.tape
    by_step: dict[int, dict[int, int]] = {}
    for sample in tape.samples:
        by_step.setdefault(int(tape.step[sample.cell]), {})[sample.seq] = sample.cell
    for number, fed in enumerate(tape.sequences):
        swapped = [
            by_step[int(tape.step[cell])].get(number, int(cell)) for cell in suspect.honest.samples
        ]
        view = replace(suspect.honest, samples=torch.tensor(swapped))
        yield Mistake(Cause.ROUTING, f"it was given what belongs to {fed.request.request_id!r}", view)
    decode_rows = {
        (int(step), int(row)): int(due)
        for step, row, due, is_decode in zip(
            tape.step, tape.row, tape.token, tape.is_decode(), strict=True
        )
        if is_decode
    }
    text = "decodes are fed the token of whoever had their row in the step before"
    yield suspect.fed(Cause.FEED, text, _of_the_row_before(tape))
    for offset, words in ((1, "the next row"), (-1, "the row before")):
        token = tape.token.clone()
        for cell in (suspect.is_own & tape.is_decode()).nonzero()[:, 0]:
            row = int(tape.step[cell]), int(tape.row[cell]) + offset
            token[cell] = decode_rows.get(row, int(token[cell]))
        yield suspect.fed(Cause.FEED, f"decodes are fed the token of {words} of their step", token)
        shifted = []
        for cell in suspect.honest.samples:
            rows = sorted(by_step[int(tape.step[cell])].values())
            place = rows.index(int(cell)) + offset
            shifted.append(rows[place % len(rows)])
        view = replace(suspect.honest, samples=torch.tensor(shifted))
        yield Mistake(Cause.ROUTING, f"it was given what belongs to {words} of its step", view)


def _of_the_row_before(tape: Tape) -> Tensor:
    """Per decode: the token that was chosen, one step earlier, in the row of the same number."""
    chosen: dict[tuple[int, int], int] = {}
    for sample in tape.samples:
        tokens, cell = tape.sequences[sample.seq].token_ids, sample.cell
        after = int(tape.index[cell]) + 1
        if after < len(tokens):
            chosen[int(tape.step[cell]), int(tape.row[cell])] = tokens[after]
    token = tape.token.clone()
    for cell in tape.is_decode().nonzero()[:, 0]:
        row = int(tape.step[cell]) - 1, int(tape.row[cell])
        token[cell] = chosen.get(row, int(token[cell]))
    return token
