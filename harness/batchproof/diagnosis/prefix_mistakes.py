"""Mistakes of a prefix cache: reused keys that are not those of the request's own beginning."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.diagnosis.storage_mistakes import kept_as
from batchproof.findings.causes import Cause


def prefix_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which reused keys belong to another request, all or one block of them, or were
    never computed."""
    table, size = suspect.table, suspect.config.block_size
    reused = suspect.is_own & (table.is_reused == 1)
    if not bool(reused.any()):
        return
    yield from _of_others(suspect, reused)
    unseen = suspect.honest.visible & ~(reused & (table.step < table.step[:, None]))
    yield suspect.mistake(Cause.STALE, "the keys taken over are not seen", visible=unseen)
    zeros = kept_as(suspect, reused, zeroed=True)
    yield Mistake(Cause.STALE, "the keys taken over are zeros: they were never computed", zeros)
    for block in (table.index[reused] // size).unique().tolist():
        yield from _other_blocks(suspect, reused, block)


def _of_others(suspect: Suspect, reused: Tensor) -> Iterator[Mistake]:
    """Yields one mistake for each other sequence: its keys at the same positions, as far as it
    reaches."""
    table = suspect.table
    for number, fed in enumerate(table.sequences):
        theirs = torch.tensor(fed.token_ids)
        reached = reused & (table.index < len(theirs))
        token = torch.where(reached, theirs[table.index.clamp(max=len(theirs) - 1)], table.token)
        if number != suspect.seq and not torch.equal(token, table.token):
            text = f"the keys taken over are those of {_whose(suspect, number)}"
            yield suspect.mistake(Cause.STALE, text, token=token)


def _other_blocks(suspect: Suspect, reused: Tensor, block: int) -> Iterator[Mistake]:
    """Yields mistakes in which one block is replaced by another block that was filled before."""
    table, size = suspect.table, suspect.config.block_size
    here = reused & (table.index // size == block)
    before = table.step <= int(table.step[here].max())
    for number in range(len(table.sequences)):
        for other in range(int(table.index[table.seq == number].max()) // size + 1):
            if number == suspect.seq and other == block:
                continue
            source = _cells_of(suspect, number, other, before)
            if len(source) < size:
                continue
            view = kept_as(suspect, here, source=source[table.index % size])
            words = f"is block {other} of {_whose(suspect, number)} (block_size {size})"
            yield Mistake(Cause.STALE, f"of the keys taken over, block {block} {words}", view)


def _cells_of(suspect: Suspect, number: int, block: int, before: Tensor) -> Tensor:
    """Returns the cells, in order, in which a sequence first fed a block."""
    table, size = suspect.table, suspect.config.block_size
    inside = (table.seq == number) & (table.index // size == block) & before & (table.is_reused == 0)
    cells = inside.nonzero()[:, 0]
    epoch = table.epoch[cells]
    cells = cells[epoch == epoch.min()] if len(cells) else cells
    return cells[table.index[cells].argsort()]


def _whose(suspect: Suspect, number: int) -> str:
    fed, own = suspect.table.sequences[number], suspect.table.sequences[suspect.seq]
    return f"{fed.request.request_id!r}" + (f" in call {fed.call + 1}" if fed.call != own.call else "")
