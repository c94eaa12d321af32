"""Models by shape: sizes in common use, with random weights made on the device.

Nothing is downloaded, and on a GPU nothing passes through float32 or the CPU. Speed depends on shape
and dtype, not on the weights, but verification depends on them: a model that repeats a token or uses
only the last few would give a broken engine the right answers. With the usual spread of 0.02 `tiny`
has 6 distinct tokens among 32 and `gpt2` 4; too wide a spread makes 16-bit rounding grow from layer to
layer. The spreads used lie between these, as measured with `batchproof.oracle.adequacy` and 32
greedy tokens (`llama-8b` at a width of 256, the last line at that width for all but `tiny`):

                                  tiny    gpt2  qwen3-0.6b  llama-1b  llama-8b
    spread (initializer_range)    0.08    0.08      0.0375     0.022    0.0156
    wrong first token changes     100%     90%        100%      100%      100%
    dropped key changes            82%     80%         90%       98%       92%
    distinct of 32 tokens           31      24          31        32        31
    bfloat16 changes of float32     5%      6%          7%        7%        7%
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """A configuration class of transformers, by name, and its arguments."""

    kind: str
    values: dict[str, Any]

    def config(self, **changes: Any) -> PreTrainedConfig:
        """Returns a new configuration without special tokens; `changes` override its values."""
        special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        return getattr(import_module("transformers"), self.kind)(
            **{**self.values, **special, **changes}
        )


def _rope_shape(
    *sizes: int, head_dim: int, rope_theta: float, is_tied: bool, spread: float
) -> dict[str, Any]:
    """`sizes`: layers, hidden, intermediate, heads, KV heads, vocabulary, positions."""
    names = (
        *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size", "max_position_embeddings"),
    )
    values: dict[str, Any] = dict(zip(names, sizes, strict=True))
    values["head_dim"] = head_dim
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": rope_theta}
    values["tie_word_embeddings"] = is_tied
    values["initializer_range"] = spread
    return values


_TINY = _rope_shape(
    *(4, 256, 704, 8, 4, 4096, 8192), head_dim=32, rope_theta=1e4, is_tied=False, spread=0.08
)
_GPT2 = {
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50_257,
    "n_positions": 1024,
    "tie_word_embeddings": True,
    "initializer_range": 0.08,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
_QWEN3_06B = _rope_shape(
    *(28, 1024, 3072, 16, 8, 151_936, 40_960), head_dim=128, rope_theta=1e6, is_tied=True, spread=0.0375
)
_LLAMA_1B = _rope_shape(
    *(16, 2048, 8192, 32, 8, 128_256, 131_072), head_dim=64, rope_theta=5e5, is_tied=True, spread=0.022
)
_LLAMA_8B = _rope_shape(
    *(32, 4096, 14_336, 32, 8, 128_256, 131_072),
    head_dim=128,
    rope_theta=5e5,
    is_tied=False,
    spread=0.0156,
)

# `tiny` as other families have it. Their adequacy is measured as that of the others.
_SMALL_EXPERTS = {"moe_intermediate_size": 176, "num_experts": 16, "num_experts_per_tok": 4}
_STATES = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_MAMBA2 = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_heads": 16,
    "head_dim": 32,
    "state_size": 32,
    "n_groups": 1,
    "chunk_size": 64,
    "tie_word_embeddings": False,
    "initializer_range": 0.08,
}
_LATENT = {
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 4,
}
_WINDOWS = {
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "sliding_window": 64,
    "query_pre_attn_scalar": 32,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}

SHAPES: dict[str, Shape] = {
    "tiny": Shape("LlamaConfig", _TINY),
    "tiny-hybrid": Shape("Qwen3_5TextConfig", {**_TINY, **_STATES}),
    "tiny-mamba2": Shape("Mamba2Config", _MAMBA2),
    "tiny-moe": Shape("Qwen3MoeConfig", {**_TINY, **_SMALL_EXPERTS, "norm_topk_prob": True}),
    "tiny-mla": Shape("DeepseekV3Config", {**_TINY, **_LATENT, "head_dim": 16}),
    "tiny-window": Shape("Gemma3TextConfig", {**_TINY, **_WINDOWS}),
    "gpt2": Shape("GPT2Config", _GPT2),
    "qwen3-0.6b": Shape("Qwen3Config", _QWEN3_06B),
    "llama-1b": Shape("LlamaConfig", _LLAMA_1B),
    "llama-8b": Shape("LlamaConfig", _LLAMA_8B),
}
