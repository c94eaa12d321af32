"""Keys and values that were not kept where, or as, they should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.diagnosis.tape import Tape
from batchproof.diagnosis.twin import View
from batchproof.findings.causes import Cause


def storage_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """A key that is lost, or stored as zeros, for the steps that come after."""
    tape, right, size = suspect.tape, suspect.honest.visible, suspect.config.block_size
    later = tape.step < tape.step[:, None]
    for what, (cause, cells) in _places(tape, size).items():
        where = f"(block_size {size})" if "block" in what else ""
        unseen = right & ~(cells & later)
        yield suspect.seeing(cause, f"{what} is not seen by later steps {where}".rstrip(), unseen)
        zeros = kept_as(suspect.honest, tape, cells, zeroed=True)
        yield Mistake(cause, f"{what} is stored as zeros {where}".rstrip(), zeros)
    is_open = tape.index >= (tape.context_len // size * size)[:, None]
    yield suspect.seeing(
        Cause.ADDRESSING,
        f"the keys of a block that is not full yet are not seen (block_size {size})",
        right & ~(is_open & later),
    )
    yield from _misread(suspect)
    yield from _one_lost(suspect)


def _misread(suspect: Suspect) -> Iterator[Mistake]:
    """Keys read from another place of the sequence's own cache."""
    tape, size = suspect.tape, suspect.config.block_size
    own, index = suspect.is_own, tape.index
    places = {
        f"blocks are taken for {other} tokens long, but hold {size}": index // other * size
        + index % other
        for other in (1, 8, 16, 32)
        if other != size
    }
    for block in range(1, int(index[own].max()) // size + 1):
        inside = index // size == block
        before = torch.where(inside, index - size, index)
        places[f"block {block} holds what block {block - 1} should (block_size {size})"] = before
    for text, place in places.items():
        held = torch.where(place > index, index, place)
        view = kept_as(suspect.honest, tape, own & (held != index), source=_cells_at(suspect, held))
        yield Mistake(Cause.ADDRESSING, text, view)


def _cells_at(suspect: Suspect, index: Tensor) -> Tensor:
    """Per own cell: the cell of the same sequence and epoch at another index."""
    tape = suspect.tape
    same = (tape.seq[:, None] == tape.seq) & (tape.epoch[:, None] == tape.epoch)
    return (same & (tape.index == index[:, None])).int().argmax(dim=1)


def _one_lost(suspect: Suspect) -> Iterator[Mistake]:
    """One key of all; the last resort."""
    tape, right = suspect.tape, suspect.honest.visible
    gap = tape.index[:, None] - tape.index
    size, last = suspect.config.block_size, int(tape.index[suspect.is_own].max())
    for position in range(last):
        if 16 <= position < last - 8 and position % size not in (0, size - 1):
            continue
        lost = suspect.is_own & (tape.index == position)
        text = f"the key of position {position} is not seen by later queries"
        yield suspect.seeing(Cause.ADDRESSING, text, right & ~(lost & (gap > 0)))


def _places(tape: Tape, size: int) -> dict[str, tuple[Cause, Tensor]]:
    """Cells that a cache may lose."""
    offset, is_decode = tape.index % size, tape.is_decode()
    end = tape.context_len + tape.query_len
    is_chunk = end < tape.num_prompt_tokens()  # does not end the prompt
    last_chunk = (tape.context_len > 0) & (end == tape.num_prompt_tokens())
    addressing = {
        "the first key of each block": offset == 0,
        "the last key of each block": offset == size - 1,
        "the first key of each block, where a decode writes it,": (offset == 0) & is_decode,
        "the last key of each block, where a decode writes it,": (offset == size - 1) & is_decode,
        "the first block": tape.index < size,
        "the key of each decoded token": is_decode,
        "the key of the prompt's last token": tape.index == tape.num_prompt_tokens() - 1,
        "the first key of the sequence": tape.index == 0,
    }
    chunk = {
        "the last key of each chunk but the last": is_chunk & (tape.index == end - 1),
        "the first key of each later chunk": (is_chunk | last_chunk)
        & (tape.index == tape.context_len)
        & (tape.context_len > 0),
        "every chunk but the last": is_chunk,
        "the last chunk": last_chunk,
    }
    found = {what: (Cause.ADDRESSING, cells) for what, cells in addressing.items()}
    return found | {what: (Cause.CHUNK, cells) for what, cells in chunk.items()}


def precision_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Rounding where there should be none."""
    everything = torch.ones_like(suspect.tape.seq, dtype=torch.bool)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        name = str(dtype).removeprefix("torch.")
        kept = kept_as(suspect.honest, suspect.tape, everything, kv_dtype=dtype)
        text = f"keys and values are kept in {name}"
        yield Mistake(Cause.PRECISION, text, kept, is_rounding=True)
        rounded = replace(suspect.honest, logits_dtype=dtype)
        yield Mistake(Cause.PRECISION, f"logits are rounded to {name}", rounded, is_rounding=True)


def kept_as(
    view: View,
    tape: Tape,
    cells: Tensor,
    zeroed: bool = False,
    kv_dtype: torch.dtype | None = None,
    source: Tensor | None = None,
) -> View:
    """What the cache keeps of these cells is not what they were in the step that fed them: zeros,
    rounded, or what cell `source` should have kept.

    Each gets a ghost at the end of the table: later steps see the ghost in its place.
    """
    chosen = cells.nonzero()[:, 0]
    num_cells, num_ghosts = len(view.token), len(chosen)
    later = tape.step[chosen] < tape.step[:, None]
    ghosts = view.visible[:, chosen] & later
    fresh = view.visible.clone()
    fresh[:, chosen] &= ~later
    rows = torch.cat([fresh, ghosts], dim=1)
    copied = chosen if source is None else source[chosen]
    mark = torch.cat(
        [torch.zeros(num_cells, dtype=torch.bool), torch.ones(num_ghosts, dtype=torch.bool)]
    )
    return replace(
        view,
        token=torch.cat([view.token, view.token[copied]]),
        position=torch.cat([view.position, view.position[copied]]),
        visible=torch.cat([rows, rows[copied]]),
        zeroed=mark if zeroed else None,
        rounded=None if kv_dtype is None else mark,
        kv_dtype=kv_dtype,
    )
