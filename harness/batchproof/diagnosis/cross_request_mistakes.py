"""Mistakes between requests: a live neighbour's keys, a former tenant's keys, another row's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.cell_table import CellTable
from batchproof.diagnosis.mistake import (
    Mistake,
    Suspect,
    among_own,
    distance,
    fed_by_then,
)
from batchproof.findings.causes import Cause


def leak_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys of sequences of the same step are seen."""
    table, right = suspect.table, suspect.honest.visible
    gap, now = distance(table), fed_by_then(table) & _present(table)
    window = torch.ones_like(right) if suspect.window is None else gap < suspect.window
    yield suspect.seeing(
        Cause.LEAK,
        "the mask compares positions only: all keys of the step up to one's own position are seen",
        now & (gap >= 0) & window,
    )
    same_step = table.step[:, None] == table.step
    earlier = same_step & (table.packed <= table.packed[:, None])
    yield suspect.seeing(
        Cause.LEAK,
        "the mask is causal over the whole packed row: earlier rows are seen",
        right | earlier,
    )
    row_before = now & (_row_of(table) < table.row[:, None])
    yield suspect.seeing(Cause.LEAK, "all keys of earlier rows are seen", right | row_before)
    yield suspect.seeing(
        Cause.LEAK,
        "no mask keeps the sequences apart: all keys of the step are seen",
        right | (now & ~among_own(table)),
    )
    for number, fed in enumerate(table.sequences):
        theirs = now & (table.seq == number)
        if number == suspect.seq or not bool(theirs[suspect.is_own].any()):
            continue
        name = fed.request.request_id
        last = table.index == _length_by_then(table, number)[:, None] - 1
        yield suspect.seeing(Cause.LEAK, f"all keys of {name!r} are seen", right | theirs)
        yield suspect.seeing(
            Cause.LEAK,
            f"the keys of {name!r} up to one's own position are seen",
            right | (theirs & (gap >= 0) & window),
        )
        yield suspect.seeing(
            Cause.LEAK, f"the first key of {name!r} is seen", right | (theirs & (table.index == 0))
        )
        yield suspect.seeing(Cause.LEAK, f"the last key of {name!r} is seen", right | (theirs & last))


def _present(table: CellTable) -> Tensor:
    """Returns whether the key's sequence has a row in the query's step, bool `(query, key)`."""
    num_steps = int(table.step.max()) + 1
    here = torch.zeros(num_steps, len(table.sequences), dtype=torch.bool)
    here[table.step, table.seq] = True
    return here[table.step[:, None], table.seq[None, :]]


def _row_of(table: CellTable) -> Tensor:
    """Returns the row that the key's sequence has in the query's step, int64 `(query, key)`."""
    rows = torch.full((int(table.step.max()) + 1, len(table.sequences)), 1 << 30)
    rows[table.step, table.seq] = table.row
    return rows[table.step[:, None], table.seq[None, :]]


def _length_by_then(table: CellTable, number: int) -> Tensor:
    """Returns for each query how many keys the sequence has, those of the query's step included."""
    mine = (table.seq == number) & (table.step <= table.step[:, None])
    return torch.where(mine, table.index + 1, 0).amax(dim=1)


def stale_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys or tokens of sequences that had ended before are used."""
    table, right = suspect.table, suspect.honest.visible
    own = suspect.is_own
    start = int(table.step[own].min())
    seen_now = (table.context_len + table.query_len)[:, None]
    is_later = (table.context_len > 0)[:, None]
    mine = table.sequences[suspect.seq]
    for number, fed in reversed(list(enumerate(table.sequences))):
        theirs = table.seq == number
        if number == suspect.seq or not bool(theirs.any()) or int(table.step[theirs].max()) >= start:
            continue
        name = f"{fed.request.request_id!r}" + (
            f" of call {fed.call + 1}" if fed.call != mine.call else ""
        )
        beyond = right | (own[:, None] & theirs & (table.index >= seen_now))
        yield suspect.seeing(
            Cause.STALE, f"keys of the former tenant {name} are seen behind one's own", beyond
        )
        decodes = right | (own[:, None] & theirs & (table.index >= seen_now) & is_later)
        yield suspect.seeing(
            Cause.STALE,
            f"keys of the former tenant {name} are seen behind one's own, in decodes",
            decodes,
        )
        everything = right | (own[:, None] & theirs)
        yield suspect.seeing(Cause.STALE, f"all keys of the former tenant {name} are seen", everything)
        kept = torch.tensor(fed.token_ids)
        overlaid = own & (table.index < fed.num_prompt_tokens) & (table.index < mine.num_prompt_tokens)
        token = torch.where(overlaid, kept[table.index.clamp(max=len(kept) - 1)], table.token)
        yield suspect.fed(
            Cause.STALE, f"the prompt of {name} is fed again, as far as it reaches", token
        )
        last = overlaid & (table.index == 0)
        token = torch.where(last, kept[table.index.clamp(max=len(kept) - 1)], table.token)
        yield suspect.fed(Cause.STALE, f"the first token of {name} is fed in place of one's own", token)


def routing_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which logits or tokens of another row of the same step are used."""
    table = suspect.table
    by_step: dict[int, dict[int, int]] = {}
    for sample in table.samples:
        by_step.setdefault(int(table.step[sample.cell]), {})[sample.seq] = sample.cell
    for number, fed in enumerate(table.sequences):
        swapped = [
            by_step[int(table.step[cell])].get(number, int(cell)) for cell in suspect.honest.samples
        ]
        view = replace(suspect.honest, samples=torch.tensor(swapped))
        yield Mistake(Cause.ROUTING, f"it was given what belongs to {fed.request.request_id!r}", view)
    decode_rows = {
        (int(step), int(row)): int(due)
        for step, row, due, is_decode in zip(
            table.step, table.row, table.token, table.is_decode(), strict=True
        )
        if is_decode
    }
    text = "decodes are fed the token of the sequence that had their row in the step before"
    yield suspect.fed(Cause.FEED, text, _of_the_row_before(table))
    for offset, words in ((1, "the next row"), (-1, "the row before")):
        token = table.token.clone()
        for cell in (suspect.is_own & table.is_decode()).nonzero()[:, 0]:
            row = int(table.step[cell]), int(table.row[cell]) + offset
            token[cell] = decode_rows.get(row, int(token[cell]))
        yield suspect.fed(Cause.FEED, f"decodes are fed the token of {words} of their step", token)
        shifted = []
        for cell in suspect.honest.samples:
            rows = sorted(by_step[int(table.step[cell])].values())
            place = rows.index(int(cell)) + offset
            shifted.append(rows[place % len(rows)])
        view = replace(suspect.honest, samples=torch.tensor(shifted))
        yield Mistake(Cause.ROUTING, f"it was given what belongs to {words} of its step", view)


def _of_the_row_before(table: CellTable) -> Tensor:
    """Returns the tokens, where each decode gets the token chosen one step earlier in the row of the
    same number."""
    chosen: dict[tuple[int, int], int] = {}
    for sample in table.samples:
        tokens, cell = table.sequences[sample.seq].token_ids, sample.cell
        after = int(table.index[cell]) + 1
        if after < len(tokens):
            chosen[int(table.step[cell]), int(table.row[cell])] = tokens[after]
    token = table.token.clone()
    for cell in table.is_decode().nonzero()[:, 0]:
        row = int(table.step[cell]) - 1, int(table.row[cell])
        token[cell] = chosen.get(row, int(token[cell]))
    return token
