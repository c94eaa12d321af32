"""The reference, run over an edited tape: what would it have answered with this very mistake?

One float64 pass over all cells at once, without a cache: who sees whom is a mask over cells, so
chunks, batches, leaks and former tenants are all the same thing.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from batchproof.diagnosis.tape import Tape
from batchproof.models.catalogue import ModelUnderTest, moved


@dataclass(frozen=True, slots=True)
class View:
    """What is fed in the pass, and what is read from it. Honest, or with one mistake."""

    token: Tensor  # per cell
    position: Tensor  # per cell
    visible: Tensor  # bool (query cell, key cell)
    samples: Tensor  # the cells whose logits are wanted
    zeroed: Tensor | None = None  # bool per cell: its key and value are zeros
    rounded: Tensor | None = None  # bool per cell: they are rounded to `kv_dtype`
    kv_dtype: torch.dtype | None = None
    logits_dtype: torch.dtype | None = None

    def is_same(self, other: View) -> bool:
        """Is nothing changed? Then the mistake cannot show on this tape."""
        return all(
            torch.equal(mine, theirs)
            if isinstance(mine := getattr(self, each.name), Tensor)
            and isinstance(theirs := getattr(other, each.name), Tensor)
            and mine.shape == theirs.shape
            else mine is getattr(other, each.name)
            for each in fields(self)
        )


def honest_view(tape: Tape, samples: Tensor, window: int | None) -> View:
    return View(tape.token, tape.index, tape.own_keys(window), samples)


@torch.inference_mode()
def logits_of(subject: ModelUnderTest, view: View, dtype: torch.dtype = torch.float64) -> Tensor:
    """Float64 logits `(samples, vocab)` on the CPU, computed in `dtype`."""
    view = _pruned(view)
    model = subject.exact
    if dtype is not torch.float64:
        model = moved(copy.deepcopy(model), model.device, dtype)
    arguments = {
        "input_ids": view.token[None],
        "position_ids": view.position.clamp(0, subject.context_len - 1)[None],
        "attention_mask": _mask(model, view.visible)[None, None],
    }
    there = {name: value.to(model.device) for name, value in arguments.items()}
    with _EditedCache(view):
        logits: Tensor = model(**there, use_cache=False).logits[0].cpu()[view.samples].double()
    return logits if view.logits_dtype is None else logits.to(view.logits_dtype).double()


def _mask(model: PreTrainedModel, visible: Tensor) -> Tensor:
    """As the model's attention takes it. SDPA gives zeros for a query that sees nothing."""
    if model.config._attn_implementation == "sdpa":
        return visible
    bias = torch.zeros(visible.shape, dtype=model.dtype)
    return bias.masked_fill_(~visible, torch.finfo(model.dtype).min)


def _pruned(view: View) -> View:
    """Without the cells that no wanted one depends on."""
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
        zeroed=None if view.zeroed is None else view.zeroed[needed],
        rounded=None if view.rounded is None else view.rounded[needed],
    )


class _EditedCache(TorchFunctionMode):
    """Hands the attention what a faulty cache would have kept, for as long as the block lasts."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key, value, *rest = args
            args = (query, self._edited(key), self._edited(value), *rest)
        return func(*args, **(kwargs or {}))

    def _edited(self, states: Tensor) -> Tensor:
        """Of shape `(1, heads, cells, head_size)`."""
        view = self._view
        if view.rounded is not None:
            mark = view.rounded.to(states.device)[:, None]
            states = torch.where(mark, states.to(view.kv_dtype).to(states.dtype), states)
        if view.zeroed is not None:
            states = states.masked_fill(view.zeroed.to(states.device)[:, None], 0.0)
        return states
