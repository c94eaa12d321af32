"""Mistakes between requests: a live neighbour's keys, a former tenant's keys, another row's logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from batchproof.diagnosis.cell_table import CellTable
from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.findings.causes import Cause


def leak_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys of sequences of the same step are seen."""
    for text, visible in _leaks(suspect):
        yield suspect.mistake(Cause.LEAK, text, visible=visible)


def _leaks(suspect: Suspect) -> Iterator[tuple[str, Tensor]]:
    table, right = suspect.table, suspect.honest.visible
    now = table.fed_by_then() & _present(table)
    up_to_own = now & (table.distance() >= 0) & table.in_window(suspect.window)
    text = "the mask compares positions only: all keys of the step up to one's own position are seen"
    yield text, up_to_own
    earlier = (table.step[:, None] == table.step) & (table.packed <= table.packed[:, None])
    yield "the mask is causal over the whole packed row: earlier rows are seen", right | earlier
    row_before = now & (_row_of(table) < table.row[:, None])
    yield "all keys of earlier rows are seen", right | row_before
    text = "no mask keeps the sequences apart: all keys of the step are seen"
    yield text, right | (now & ~table.among_own())
    for number, fed in enumerate(table.sequences):
        own = table.seq == number
        theirs = now & own
        if number == suspect.seq or not bool(theirs[suspect.is_own].any()):
            continue
        name = fed.request.request_id
        last = table.index == _length_by_then(table, number)[:, None] - 1
        yield f"all keys of {name!r} are seen", right | theirs
        yield f"the keys of {name!r} up to one's own position are seen", right | (up_to_own & own)
        yield f"the first key of {name!r} is seen", right | (theirs & (table.index == 0))
        yield f"the last key of {name!r} is seen", right | (theirs & last)


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
    mine = (table.seq == number) & table.fed_by_then()
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
        call = f" of call {fed.call + 1}" if fed.call != mine.call else ""
        name = f"{fed.request.request_id!r}{call}"
        all_theirs = own[:, None] & theirs
        beyond = all_theirs & (table.index >= seen_now)
        text = f"keys of the former tenant {name} are seen behind one's own"
        yield suspect.mistake(Cause.STALE, text, visible=right | beyond)
        yield suspect.mistake(Cause.STALE, f"{text}, in decodes", visible=right | (beyond & is_later))
        text = f"all keys of the former tenant {name} are seen"
        yield suspect.mistake(Cause.STALE, text, visible=right | all_theirs)
        kept = torch.tensor(fed.token_ids)[table.index.clamp(max=len(fed.token_ids) - 1)]
        overlaid = own & (table.index < fed.num_prompt_tokens) & (table.index < mine.num_prompt_tokens)
        token = torch.where(overlaid, kept, table.token)
        text = f"the prompt of {name} is fed again, as far as it reaches"
        yield suspect.mistake(Cause.STALE, text, token=token)
        token = torch.where(overlaid & (table.index == 0), kept, table.token)
        text = f"the first token of {name} is fed in place of one's own"
        yield suspect.mistake(Cause.STALE, text, token=token)


def routing_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which logits or tokens of another row of the same step are used."""
    table = suspect.table
    own_cells = suspect.honest.samples.tolist()
    by_step: dict[int, dict[int, int]] = {}
    for sample in table.samples:
        by_step.setdefault(int(table.step[sample.cell]), {})[sample.seq] = sample.cell
    sampled = [by_step[int(table.step[cell])] for cell in own_cells]  # beside each own cell
    for number, fed in enumerate(table.sequences):
        cells = [beside.get(number, own) for own, beside in zip(own_cells, sampled, strict=True)]
        text = f"it was given what belongs to {fed.request.request_id!r}"
        yield suspect.mistake(Cause.ROUTING, text, samples=torch.tensor(cells))
    is_decode = table.is_decode()
    places = [*zip(table.step.tolist(), table.row.tolist(), strict=True)]
    decoded = {places[cell]: int(table.token[cell]) for cell in is_decode.nonzero()[:, 0].tolist()}
    text = "decodes are fed the token of the sequence that had their row in the step before"
    yield suspect.mistake(Cause.FEED, text, token=_of_the_row_before(table))
    for offset, words in ((1, "the next row"), (-1, "the row before")):
        token = table.token.clone()
        for cell in (suspect.is_own & is_decode).nonzero()[:, 0].tolist():
            step, row = places[cell]
            token[cell] = decoded.get((step, row + offset), int(token[cell]))
        text = f"decodes are fed the token of {words} of their step"
        yield suspect.mistake(Cause.FEED, text, token=token)
        shifted = []
        for own, beside in zip(own_cells, sampled, strict=True):
            cells = sorted(beside.values())
            shifted.append(cells[(cells.index(own) + offset) % len(cells)])
        text = f"it was given what belongs to {words} of its step"
        yield suspect.mistake(Cause.ROUTING, text, samples=torch.tensor(shifted))


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
