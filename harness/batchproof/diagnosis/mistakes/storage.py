"""Mistakes of the KV cache: keys and values in the wrong place, lost, or rounded."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.diagnosis.counterfactual import CellTable, Edit, Mistake, Suspect, View
from batchproof.findings.causes import Cause
from batchproof.models.cached_states import reading


def storage_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys are lost, stored as zeros, or read from elsewhere later."""
    table, right, size = suspect.table, suspect.honest.visible, suspect.config.block_size
    later = table.step < table.step[:, None]
    for what, (cause, cells) in places_of(table, size).items():
        where = f" (block_size {size})" if "block" in what else ""
        unseen = right & ~(cells & later)
        text = f"{what} is not seen by later steps{where}"
        yield suspect.mistake(cause, text, visible=unseen)
        zeros = kept_as(suspect, cells, held=torch.zeros_like)
        yield Mistake(cause, f"{what} is stored as zeros{where}", zeros)
    is_open = table.index >= (table.context_len // size * size)[:, None]
    text = f"the keys of a block that is not full yet are not seen (block_size {size})"
    yield suspect.mistake(Cause.ADDRESSING, text, visible=right & ~(is_open & later))
    yield from _misread(suspect)
    yield from _one_lost(suspect)


def _misread(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys are read from another place of the sequence's own cache."""
    table, size = suspect.table, suspect.config.block_size
    own, index = suspect.is_own, table.index
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
        there = table.among_own() & (index == held[:, None])
        view = kept_as(suspect, own & (held != index), source=there.int().argmax(dim=1))
        yield Mistake(Cause.ADDRESSING, text, view)


def _one_lost(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which a single key is lost; they are tried last."""
    table, right = suspect.table, suspect.honest.visible
    gap = table.distance()
    size, last = suspect.config.block_size, int(table.index[suspect.is_own].max())
    for position in range(last):
        if 16 <= position < last - 8 and position % size not in (0, size - 1):
            continue
        lost = suspect.is_own & (table.index == position)
        text = f"the key of position {position} is not seen by later queries"
        yield suspect.mistake(Cause.ADDRESSING, text, visible=right & ~(lost & (gap > 0)))


def places_of(table: CellTable, size: int) -> dict[str, tuple[Cause, Tensor]]:
    """Returns sets of cells that a cache may lose, bool `(num_cells,)`, by their description."""
    offset, is_decode = table.index % size, table.is_decode()
    end = table.context_len + table.query_len
    is_chunk = end < table.num_prompt_tokens()  # does not end the prompt
    last_chunk = (table.context_len > 0) & (end == table.num_prompt_tokens())
    addressing = {
        "the first key of each block": offset == 0,
        "the last key of each block": offset == size - 1,
        "the first key of each block, where a decode writes it,": (offset == 0) & is_decode,
        "the last key of each block, where a decode writes it,": (offset == size - 1) & is_decode,
        "the first block": table.index < size,
        "the key of each decoded token": is_decode,
        "the key of the prompt's last token": table.index == table.num_prompt_tokens() - 1,
        "the first key of the sequence": table.index == 0,
    }
    chunk = {
        "the last key of each chunk but the last": is_chunk & (table.index == end - 1),
        "the first key of each later chunk": (is_chunk | last_chunk)
        & (table.index == table.context_len)
        & (table.context_len > 0),
        "every chunk but the last": is_chunk,
        "the last chunk": last_chunk,
    }
    found = {what: (Cause.ADDRESSING, cells) for what, cells in addressing.items()}
    return found | {what: (Cause.CHUNK, cells) for what, cells in chunk.items()}


def precision_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys and values, or logits, are rounded to a smaller dtype."""
    everything = torch.ones_like(suspect.table.seq, dtype=torch.bool)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        name = str(dtype).removeprefix("torch.")
        kept = kept_as(suspect, everything, held=partial(_rounded, dtype=dtype))
        text = f"keys and values are kept in {name}"
        yield Mistake(Cause.PRECISION, text, kept, is_rounding=True)
        rounded = replace(suspect.honest, logits_dtype=dtype)
        yield Mistake(Cause.PRECISION, f"logits are rounded to {name}", rounded, is_rounding=True)


def _rounded(states: Tensor, dtype: torch.dtype) -> Tensor:
    return states.to(dtype).to(states.dtype)


def kept_as(
    suspect: Suspect,
    cells: Tensor,
    source: Tensor | None = None,
    held: Callable[[Tensor], Tensor] | None = None,
    are_values_kept: bool = False,
) -> View:
    """Returns the right view, but the cache keeps other keys and values for these cells: what `held`
    makes of them, `(1, heads, cells, head_dim)`, or of keys alone; or those of the cells `source`.

    Each cell gets a substitute at the end of the table, which later steps see in its place.
    """
    view, table = suspect.honest, suspect.table
    chosen = cells.nonzero()[:, 0]
    later = table.step[chosen] < table.step[:, None]
    substitutes = view.visible[:, chosen] & later
    fresh = view.visible.clone()
    fresh[:, chosen] &= ~later
    rows = torch.cat([fresh, substitutes], dim=1)
    copied = chosen if source is None else source[chosen]
    within = {}  # a substitute is as far away as what it stands for
    for kind, each in view.within.items():
        wide = torch.cat([each, each[:, chosen]], dim=1)
        within[kind] = torch.cat([wide, wide[copied]])

    is_substitute = torch.arange(table.num_cells + len(chosen)) >= table.num_cells
    during = held and partial(held_where, held=held, are_values_kept=are_values_kept)
    return replace(
        view,
        token=torch.cat([view.token, view.token[copied]]),
        variant=torch.cat([view.variant, view.variant[copied]]),
        position=torch.cat([view.position, view.position[copied]]),
        visible=torch.cat([rows, rows[copied]]),
        within=within,
        edit=None if during is None else Edit(is_substitute, during),
    )


def held_where(
    model: PreTrainedModel, marked: Tensor, held: Callable[[Tensor], Tensor], are_values_kept: bool
) -> AbstractContextManager[None]:
    def read(states: Tensor) -> Tensor:
        return torch.where(marked.to(states.device)[:, None], held(states), states)

    return reading(model, read, are_values_kept)
