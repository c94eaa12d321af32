"""Drafts for speculative decoding: part of the contract (`batchproof.api`).

An engine that speculates lets a cheap draft propose the next tokens of a sequence, feeds them to the
model in one step, and keeps those that the model would have chosen itself, and its choice behind them
(Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023). So the draft
decides how fast an answer comes, and never what it is.

A *dialled* draft is made of the model under test, and its rate of right proposals is known beforehand:
it has the model's weights, but in its output head the rows of some tokens change places. Where the
model would choose one of these, the draft proposes another; elsewhere it agrees. Its queries and keys
have the opposite sign, which changes no score, so that a key of the draft in the model's cache shows.

This module imports no torch at run time before a draft is made.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, dtype, nn
    from transformers import PreTrainedModel

HEAD = "head"  # the folder of a draft head, beside the weights of a checkpoint
_DRAFTS: WeakKeyDictionary[PreTrainedModel, dict[float, PreTrainedModel]] = WeakKeyDictionary()
_SMALLER: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()
_BUILDERS: WeakKeyDictionary[PreTrainedModel, Callable[[float], Head]] = WeakKeyDictionary()
_HEADS: WeakKeyDictionary[PreTrainedModel, Head] = WeakKeyDictionary()


class Head(Protocol):
    """A draft head: it proposes from the model's hidden states, and is no model of its own."""

    def to(self, *, dtype: dtype) -> Head:
        """Returns the head in a dtype."""

    def chained(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Returns the head's hidden states (1, n, width) for the tokens (1, n) that follow the hidden
        states (1, n, width): the model's own, behind its last norm, or the head's."""

    def logits_input(self, hidden: Tensor) -> Tensor:
        """Returns what the model's output head is given for hidden states of `chained`."""

    def save(self, folder: Path) -> None:
        """Writes it into a new folder as engines load it."""


def dialled_draft(model: PreTrainedModel, agreement: float) -> PreTrainedModel:
    """Returns the draft that agrees with the model wherever that chooses one of a share `agreement` of
    the tokens; the same draft for the same model.

    It shares the model's parameters but for its head, queries and keys. Of `vocab_size` tokens
    round((1 - agreement) * vocab_size) disagree, never a single one.
    """
    known = _DRAFTS.setdefault(model, {})
    if agreement not in known:
        known[agreement] = _dialled(_SMALLER.get(model, model), agreement)
        known[agreement].to(device=model.device, dtype=model.dtype)
        head = new_head(model, agreement)
        if head is not None:
            _HEADS[known[agreement]] = head
    return known[agreement]


def register_smaller(model: PreTrainedModel, smaller: PreTrainedModel) -> None:
    """Lets the model's drafts be made of a smaller one that chooses the same tokens."""
    _SMALLER[model] = smaller


def register_head(model: PreTrainedModel, build: Callable[[float], Head]) -> None:
    """Lets the model's drafts have a draft head beside them, which `build` makes for an agreement."""
    _BUILDERS[model] = build


def new_head(model: PreTrainedModel, agreement: float) -> Head | None:
    """Returns a draft head with that agreement in the model's dtype, or None if the model has none."""
    build = _BUILDERS.get(model)
    return None if build is None else build(agreement).to(dtype=model.dtype)


def head_of(draft: PreTrainedModel) -> Head | None:
    """Returns the draft head that proposes the same as a dialled draft, if its model has one."""
    return _HEADS.get(draft)


def disagreeing_tokens(vocab_size: int, agreement: float) -> list[int]:
    """Returns the tokens that a draft never proposes where the model chooses them, ascending.

    They are spread evenly: those at which the sum of (1 - agreement) per token passes a whole number.
    """
    share = 1 - agreement
    steps = [int((token + 1) * share + 1e-9) > int(token * share + 1e-9) for token in range(vocab_size)]
    tokens = [token for token, is_next in enumerate(steps) if is_next]
    return tokens if len(tokens) != 1 else []


def proposed_instead(token: int, vocab_size: int, agreement: float) -> int:
    """Returns what a draft proposes where the model chooses this token."""
    tokens = disagreeing_tokens(vocab_size, agreement)
    return tokens[tokens.index(token) - 1] if token in tokens else token


def _dialled(model: PreTrainedModel, agreement: float) -> PreTrainedModel:
    import torch  # noqa: PLC0415 - see above

    shared: dict[int, object] = {id(each): each for each in (*model.parameters(), *model.buffers())}
    draft = copy.deepcopy(model, shared)
    head: nn.Linear = draft.get_output_embeddings()
    tokens = disagreeing_tokens(head.weight.shape[0], agreement)
    order = torch.arange(head.weight.shape[0], device=head.weight.device)
    order[tokens] = order[tokens[1:] + tokens[:1]]
    _replace(head, lambda values: values[order])
    draft.config.tie_word_embeddings = False
    for module in draft.modules():
        _turn_keys(module)
    return draft


def _turn_keys(module: nn.Module) -> None:
    """Changes the sign of queries and keys, if the module projects them in one of the usual ways."""
    fused = getattr(module, "c_attn", None)  # queries, keys, values side by side, as in GPT-2
    pair = [getattr(module, name, None) for name in ("q_proj", "k_proj")]
    if fused is not None:
        _replace(fused, _with_two_thirds_turned)
    elif all(pair):
        for layer in filter(None, pair):
            _replace(layer, operator.neg)


def _with_two_thirds_turned(values: Tensor) -> Tensor:
    turned = values.clone()
    turned[..., : 2 * values.shape[-1] // 3] *= -1
    return turned


def _replace(layer: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Gives the layer changed parameters in place of those that it shares with the model."""
    import torch  # noqa: PLC0415

    for name in ("weight", "bias"):
        values = getattr(layer, name, None)
        if values is not None:
            setattr(layer, name, torch.nn.Parameter(change(values.detach()), requires_grad=False))
