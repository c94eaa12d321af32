"""A model whose attention reads other keys and values than it computes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

READS = "batchproof_reads_"  # before the name of the attention that is called then


def read_as(
    model: PreTrainedModel, kind: str, held: Callable[[Tensor], Tensor], are_values_kept: bool = False
) -> None:
    """Lets attention read keys and values, `(batch, heads, keys, head_dim)`, as `held` returns them.

    `kind` names `held`: the same name is the same function in all models. It must be undone before
    another is set.
    """
    own = model.config._attn_implementation

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
    ) -> Any:
        eager = sys.modules[type(module).__module__].eager_attention_forward
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(own, eager)
        value = value if are_values_kept else held(value)
        return attention(module, query, held(key), value, mask, **more)

    name = f"{READS}{kind}_{own}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[own])
    model.set_attn_implementation(name)


@contextmanager
def reading(
    model: PreTrainedModel, held: Callable[[Tensor], Tensor], are_values_kept: bool = False
) -> Iterator[None]:
    """Does so while the block runs; or for keys alone, where values are kept as they are."""
    own = model.config._attn_implementation
    read_as(model, "edited", held, are_values_kept)
    try:
        yield
    finally:
        model.set_attn_implementation(own)
