"""Runs the reference over a changed table: what it would answer with a given mistake.

One float64 pass covers all cells, without a cache. Which key a query sees is a mask over cells, so that
chunks, batches, leaks and former tenants need no special treatment.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from batchproof.diagnosis.cell_table import CellTable
from batchproof.models.catalogue import ModelUnderTest, moved

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers, as transformers names them


@dataclass(frozen=True, slots=True)
class View:
    """What is fed in the pass, and what is read from it: the right computation, or one with a
    mistake."""

    token: Tensor  # per cell
    position: Tensor  # per cell
    visible: Tensor  # bool (query cell, key cell)
    samples: Tensor  # the cells whose logits are wanted
    # By kind of layer: which of these keys it sees. Kinds that are not named see all.
    within: Mapping[str, Tensor] = field(default_factory=dict)
    zeroed: Tensor | None = None  # bool per cell: its key and value are zeros
    rounded: Tensor | None = None  # bool per cell: they are rounded to `kv_dtype`
    kv_dtype: torch.dtype | None = None
    logits_dtype: torch.dtype | None = None

    def grown(self, within: Tensor) -> Tensor:
        """Returns the mask with pads as keys within; a mistake may have added some behind the cells."""
        num = len(self.visible) - len(within)
        return pad(within, (0, num, 0, num), value=True)

    def seen_by(self, kind: str) -> Tensor:
        """Returns the mask of the layers of a kind, bool (query cell, key cell)."""
        within = self.within.get(kind)
        return self.visible if within is None else self.visible & self.grown(within)

    def is_same(self, other: View) -> bool:
        """Returns whether nothing differs, so that the mistake cannot show on this table."""
        return all(
            torch.equal(mine, theirs)
            if isinstance(mine := getattr(self, each.name), Tensor)
            and isinstance(theirs := getattr(other, each.name), Tensor)
            and mine.shape == theirs.shape
            else mine is getattr(other, each.name)
            for each in fields(self)
        )


def honest_view(
    table: CellTable, samples: Tensor, window: int | None, kinds: Collection[str] = ()
) -> View:
    """Returns the right computation, whose logits are those of the cells `samples`, `(n,)`. Of layers
    of several kinds, only those that slide have the window."""
    if len(kinds) < 2 or window is None:
        return View(table.token, table.index, table.own_keys(window), samples)
    within = {SLIDING: table.in_window(window)}
    return View(table.token, table.index, table.own_keys(None), samples, within)


@torch.inference_mode()
def logits_of(subject: ModelUnderTest, view: View, dtype: torch.dtype = torch.float64) -> Tensor:
    """Returns float64 logits `(samples, vocab)` on the CPU, computed in `dtype`."""
    view = _pruned(view)
    model = subject.exact
    if dtype is not torch.float64:
        model = moved(copy.deepcopy(model), model.device, dtype)
    arguments: dict[str, Any] = {
        "input_ids": view.token[None].to(model.device),
        "position_ids": view.position.clamp(0, subject.context_len - 1)[None].to(model.device),
        "attention_mask": _mask(model, view.visible),
    }
    if len(subject.layer_kinds) > 1:
        seen = {kind: view.seen_by(kind) for kind in subject.layer_kinds}
        arguments["attention_mask"] = {kind: _mask(model, mask) for kind, mask in seen.items()}
    with _EditedCache(view):
        logits: Tensor = model(**arguments, use_cache=False).logits[0].cpu()[view.samples].double()
    return logits if view.logits_dtype is None else logits.to(view.logits_dtype).double()


def _mask(model: PreTrainedModel, visible: Tensor) -> Tensor:
    """Returns the mask in the form that the model's attention takes, (1, 1, queries, keys).

    SDPA returns zeros for a query that sees nothing.
    """
    visible = visible[None, None].to(model.device)
    if model.config._attn_implementation == "sdpa":
        return visible
    bias = torch.zeros(visible.shape, dtype=model.dtype, device=model.device)
    return bias.masked_fill_(~visible, torch.finfo(model.dtype).min)


def _pruned(view: View) -> View:
    """Returns the view without the cells that no sampled cell depends on."""
    needed = torch.zeros(len(view.token), dtype=torch.bool)
    needed[view.samples] = True
    while True:
        more = needed | view.visible[needed].any(dim=0)
        if torch.equal(more, needed):
            break
        needed = more
    place = needed.cumsum(0) - 1
    return replace(
        view,
        token=view.token[needed],
        position=view.position[needed],
        visible=view.visible[needed][:, needed],
        samples=place[view.samples],
        within={kind: view.grown(each)[needed][:, needed] for kind, each in view.within.items()},
        zeroed=None if view.zeroed is None else view.zeroed[needed],
        rounded=None if view.rounded is None else view.rounded[needed],
    )


class _EditedCache(TorchFunctionMode):
    """Replaces keys and values by what a faulty cache would have kept, while the block runs."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key, value, *rest = args
            args = (query, self._edited(key), self._edited(value), *rest)
        return func(*args, **(kwargs or {}))

    def _edited(self, states: Tensor) -> Tensor:
        """Returns the states `(1, heads, cells, head_size)` as a faulty cache would return them."""
        view = self._view
        if view.rounded is not None:
            mark = view.rounded.to(states.device)[:, None]
            states = torch.where(mark, states.to(view.kv_dtype).to(states.dtype), states)
        if view.zeroed is not None:
            states = states.masked_fill(view.zeroed.to(states.device)[:, None], 0.0)
        return states
