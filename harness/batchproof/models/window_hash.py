"""`mistral-hash` and `mixtral-hash`: a sliding window, grouped heads and experts, exact in every dtype.

They work as `byte_models` says, with sums of seven signs. The best logit leads by 3.8 or more. Heads
have 64 dimensions; six query heads share two KV heads; the window is 8 of 4,096 positions. In
`mixtral-hash` two of the sums choose the expert by their signs, and each expert negates other products.
"""

from functools import partial
from typing import Any

from transformers import MistralForCausalLM, MixtralForCausalLM

from batchproof.models import window_hash_oracle as tables
from batchproof.models.byte_models import (
    WINDOW_AMPLITUDES,
    built,
    fill_attention,
    fill_expert,
    fill_frame,
    fill_mlp,
    fill_router,
    query_at,
)
from batchproof.models.hash_tables import bit_order

WIDTH, INNER = 32, 128  # kernels want a multiple of 8


def _fill(model: Any) -> None:
    fill_frame(model, lambda _: len(tables.OFFSETS[0]) + 1)
    for layer, block in enumerate(model.model.layers):
        queries = [query_at(offset, WINDOW_AMPLITUDES[offset]) for offset in tables.OFFSETS[layer]]
        fill_attention(block.self_attn, queries, partial(bit_order, tables.SERIES, layer))
        if isinstance(model, MistralForCausalLM):
            fill_mlp(block.mlp, enumerate(tables.flips(layer, 0)))
        else:
            fill_router(block.mlp.gate.weight)
            for expert in range(tables.NUM_EXPERTS):
                fill_expert(block.mlp.experts, expert, enumerate(tables.flips(layer, expert)))


# Without experts, and with some.
build_mistral_hash = partial(
    built,
    MistralForCausalLM,
    _fill,
    sliding_window=tables.WINDOW,
    hidden_size=WIDTH,
    intermediate_size=INNER,
    num_hidden_layers=len(tables.OFFSETS),
    num_attention_heads=len(tables.OFFSETS[0]),
)
build_mixtral_hash = partial(
    built,
    MixtralForCausalLM,
    _fill,
    num_local_experts=tables.NUM_EXPERTS,
    num_experts_per_tok=2,
    **build_mistral_hash.keywords,
)
