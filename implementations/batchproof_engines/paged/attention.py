"""How the engine's attention gets into a model: one function registered with transformers.

`AttentionInterface` hands every layer's rotated queries and unrepeated keys and values to the function
that the config names. Ours has no entry among transformers' masks, so no mask is built. Which batch
they belong to cannot be passed through all models, so it lies in a context variable while a forward
pass runs. Layers are numbered in the order in which they attend: a number that a layer brought along
would be a constant to a compiler, and one compiled layer could not serve all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from batchproof.errors import UnsupportedModelError
from batchproof_engines.paged.batch import RaggedBatch

NAME = "batchproof_paged"


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """What a layer asks for besides queries, keys and values."""

    scaling: float
    window: int | None = None  # a query sees at most so many keys, its own included
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # (num_heads,): a logit more in each head's softmax, without a value


class Backend(Protocol):
    """Keys and values of all running sequences, and the kernels that read them."""

    def begin(self, batch: RaggedBatch) -> None:
        """Once a step, before the forward pass."""
        ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        """Keep the T fed tokens' keys and values, and let each row's queries see their sequence's.

        `query` is (T, num_heads, qk_dim), `key` (T, num_kv_heads, qk_dim), `value` (T, num_kv_heads,
        v_dim), packed as in the batch; returns (T, num_heads, v_dim).
        """
        ...

    def poison(self, block_ids: Sequence[int], value: float) -> None:
        """Fill free blocks, which nobody may read."""
        ...

    @property
    def num_bytes(self) -> int:
        """Of keys and values."""
        ...


@dataclass(slots=True)
class Pass:
    """One forward pass: where attention goes, and how many layers have attended."""

    backend: Backend
    num_layers: int = 0


_CURRENT: ContextVar[Pass] = ContextVar("the forward pass under way")


@contextmanager
def passing_to(backend: Backend) -> Iterator[Pass]:
    """While a forward pass runs."""
    current = Pass(backend)
    token = _CURRENT.set(current)
    try:
        with torch.inference_mode():
            yield current
    finally:
        _CURRENT.reset(token)


# An operator of torch's, so that it stays one call when the model around it is traced or compiled.
_LIBRARY = torch.library.Library("batchproof", "DEF")
_LIBRARY.define(
    "attend(Tensor query, Tensor key, Tensor value, float scaling, int? window, float? softcap, "
    "Tensor? sinks) -> Tensor"
)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`query` (1, num_heads, T, qk_dim) and so on -> (1, T, num_heads, v_dim)."""
    current = _CURRENT.get()
    layer, current.num_layers = current.num_layers, current.num_layers + 1
    form = AttentionForm(scaling, window, softcap, sinks)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    return current.backend.attend(layer, query, key, value, form)[None]


def _shape(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:  # noqa: ARG001
    """What `_attend` returns, for compilers, which want to know without running it."""
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_LIBRARY.impl("attend", _attend, "CompositeExplicitAutograd")  # one for all devices
torch.library.register_fake("batchproof::attend", _shape)


def _attention(
    module: nn.Module,  # noqa: ARG001 - which layer it is, its turn says
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - an engine does not train
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unknown: Any,  # noqa: ARG001 - what else a model passes means something to other functions
) -> tuple[Tensor, None]:
    """What transformers calls; shapes as `_attend` has them."""
    if attention_mask is not None:
        raise UnsupportedModelError("it builds an attention mask of its own")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    attend = torch.ops.batchproof.attend.default
    return attend(query, key, value, scaling, sliding_window, softcap, s_aux), None


AttentionInterface.register(NAME, _attention)


class Attached:
    """Puts our attention into a model for the time of a forward pass, and takes it out again."""

    def __init__(self, model: PreTrainedModel, name: str = NAME) -> None:
        self._name = name
        configs = [module.config for module in model.modules() if hasattr(module, "config")]
        unique = {id(config): config for config in configs if isinstance(config, PreTrainedConfig)}
        self._configs = tuple(unique.values())

    def __enter__(self) -> None:
        self._own = [config._attn_implementation_internal for config in self._configs]
        for config in self._configs:
            config._attn_implementation_internal = self._name

    def __exit__(self, *_: object) -> None:
        for config, own in zip(self._configs, self._own, strict=True):
            config._attn_implementation_internal = own
