"""Keys that came from a prefix cache, and were not those of one's own beginning."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.diagnosis.storage import kept_as
from batchproof.findings.causes import Cause


def prefix_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """They belong to somebody else, all or one block of them, or to nobody."""
    tape, size = suspect.tape, suspect.config.block_size
    adopted = suspect.is_own & (tape.is_adopted == 1)
    if not bool(adopted.any()):
        return
    yield from _of_others(suspect, adopted)
    unseen = suspect.honest.visible & ~(adopted & (tape.step < tape.step[:, None]))
    yield suspect.seeing(Cause.STALE, "the keys taken over are not seen", unseen)
    zeros = kept_as(suspect.honest, tape, adopted, zeroed=True)
    yield Mistake(Cause.STALE, "the keys taken over are zeros: nobody has computed them", zeros)
    for block in (tape.index[adopted] // size).unique().tolist():
        yield from _other_blocks(suspect, adopted, block)


def _of_others(suspect: Suspect, adopted: Tensor) -> Iterator[Mistake]:
    """What another one has at the same positions, as far as it reaches."""
    tape = suspect.tape
    for number, fed in enumerate(tape.sequences):
        theirs = torch.tensor(fed.token_ids)
        reached = adopted & (tape.index < len(theirs))
        token = torch.where(reached, theirs[tape.index.clamp(max=len(theirs) - 1)], tape.token)
        if number != suspect.seq and not torch.equal(token, tape.token):
            text = f"the keys taken over are those of {_whose(suspect, number)}"
            yield suspect.fed(Cause.STALE, text, token)


def _other_blocks(suspect: Suspect, adopted: Tensor, block: int) -> Iterator[Mistake]:
    """In place of one block any other that had been filled by then."""
    tape, size = suspect.tape, suspect.config.block_size
    here = adopted & (tape.index // size == block)
    before = tape.step <= int(tape.step[here].max())
    for number in range(len(tape.sequences)):
        for other in range(int(tape.index[tape.seq == number].max()) // size + 1):
            if number == suspect.seq and other == block:
                continue
            source = _cells_of(suspect, number, other, before)
            if len(source) < size:
                continue
            at = source[tape.index % size]
            view = kept_as(suspect.honest, tape, here, source=at)
            words = f"is block {other} of {_whose(suspect, number)} (block_size {size})"
            yield Mistake(Cause.STALE, f"of the keys taken over, block {block} {words}", view)


def _cells_of(suspect: Suspect, number: int, block: int, before: Tensor) -> Tensor:
    """The cells, in order, in which a sequence first fed a block."""
    tape, size = suspect.tape, suspect.config.block_size
    inside = (tape.seq == number) & (tape.index // size == block) & before & (tape.is_adopted == 0)
    cells = inside.nonzero()[:, 0]
    epoch = tape.epoch[cells]
    cells = cells[epoch == epoch.min()] if len(cells) else cells
    return cells[tape.index[cells].argsort()]


def _whose(suspect: Suspect, number: int) -> str:
    fed, own = suspect.tape.sequences[number], suspect.tape.sequences[suspect.seq]
    return f"{fed.request.request_id!r}" + (f" in call {fed.call + 1}" if fed.call != own.call else "")
