"""A tiny random model for each causal-LM type of transformers, and for other forms of some types.

Any configuration is made small by the names of its fields. A toy keeps one layer of each kind: layers
are picked so that each combination of values in the per-layer lists occurs, and those lists are cut to
the layers picked.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FULL, SLIDING = "full_attention", "sliding_attention"

_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_ROPE_OF_THREE = {**_ROPE, "mrope_section": [4, 2, 2]}
_STRETCHED = {"factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 32}
_SHARED_KV = {  # the last two layers read the keys of the first two
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, FULL] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
}

# By model type, parts of a model included.
FIXES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "blt_local_decoder": {"hidden_size_global": 64},
    "blt_local_encoder": {"hidden_size_global": 64, "vocab_size": 260},
    "cohere_compass_text": {"rope_parameters": {FULL: _ROPE_OF_THREE, SLIDING: _ROPE_OF_THREE}},
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_audio_encoder": {"adapter_input_size": 64, "adapter_out_dim": 64},
    "dots3_note_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 24,
        "swa_q_lora_rank": 24,
        "swa_kv_lora_rank": 16,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
        "index_topk": 4,
    },
    "dots3_note_vision_encoder": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    "falcon_h1": {
        "mamba_d_ssm": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "gemma3n_text": {
        **_SHARED_KV,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "intermediate_size": [48] * 4,
    },
    "gemma4_text": {**_SHARED_KV, "global_head_dim": 32},
    "gemma4_unified_text": {**_SHARED_KV, "global_head_dim": 32},
    "granitemoehybrid": {"layer_types": ["linear_attention", FULL]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", FULL], "num_hidden_layers": 2},
    "mamba2": {"num_heads": 8, "state_size": 16, "chunk_size": 16},
    "ministral": {"layer_types": [SLIDING, FULL]},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    # A time step has a lower bound in their prefill, but none in their decode.
    "nemotron_h": {"n_groups": 2, "mamba_num_heads": 8, "time_step_min": 1e-12},
    "qwen4_exp_text": {
        "hc_lowrank": 16,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_shape": [16, 8], "axial_pos_embds_dim": [16, 48], "num_buckets": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "zamba2": {
        "num_key_value_heads": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "time_step_min": 1e-12,
    },
}

# Other forms of a type that an engine may treat differently.
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {"both ways": {"is_decoder": False}},
    "falcon": {"ALiBi": {"alibi": True}},
    "gemma2": {"eager attention": {"attn_implementation": "eager"}},
    "gemma3_text": {
        "both ways": {"use_bidirectional_attention": True},
        "one RoPE dynamic": {
            "rope_parameters": {SLIDING: _ROPE, FULL: {**_STRETCHED, "rope_type": "dynamic"}}
        },
    },
    "gpt2": {
        "scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
    },
    "gpt_neox": {"serial residual": {"use_parallel_residual": False}},
    "lfm2": {"with convolutions": {"layer_types": ["conv", FULL], "num_hidden_layers": 2}},
    "llama": {
        "dynamic RoPE": {"rope_parameters": {**_STRETCHED, "rope_type": "dynamic"}},
        "yarn RoPE": {"rope_parameters": {**_STRETCHED, "rope_type": "yarn"}},
        "llama3 RoPE": {
            "rope_parameters": {
                **_STRETCHED,
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        },
        "one KV head": {"num_key_value_heads": 1},
    },
    "minimax_m3_vl_text": {
        "sparse layers": {
            "layer_types": [FULL, "minimax_m3_sparse"],
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 4,
            "index_topk_blocks": 2,
        }
    },
    "opt": {"embeddings projected": {"word_embed_proj_dim": 32, "do_layer_norm_before": False}},
    "phi3": {
        "longrope": {
            "rope_parameters": {
                **_STRETCHED,
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [4.0] * 8,
            }
        }
    },
}


Fixes = Mapping[str, Mapping[str, Any]]  # by model type

WINDOW = 5  # keys; prompts are far longer
VOCAB_SIZE = 96
CONTEXT_LEN = 128
LEARNED_LEN = 32  # positions of a RoPE before it was stretched; prompts are longer
HEAD_DIM = 16
NUM_KV_HEADS = 2  # of 4
SPREAD = 0.2  # of weights, as in `batchproof.models.random_models`
MOST_LAYERS = 6

# The first pattern that matches the whole name of a field gives its largest value.
SIZES: tuple[tuple[str, int], ...] = (
    (r"(\w+_)?(key_value|kv)_heads|kv_n_heads|num_query_groups", NUM_KV_HEADS),
    (r"(\w+_)?heads|n_heads?|\w+_n_heads", 4),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"qk_head_dim", 24),
    (r"(\w+_)?head_(dim|size)|d_kv|d_head|dim_head|kv_channels", HEAD_DIM),
    (r"q_lora_rank", 24),
    (r"\w+_rank", 16),
    (r"(\w+_)?hidden_size|d_model|n_embd|emb_dim|\w*embed(ding)?_(size|dim)|word_embed_proj_dim", 64),
    (
        r"(\w+_)?(intermediate|ffn|feed_forward)_(\w+_)?(size|dim)|ffn_dim|dim_ff|d_?ff|mlp_dim|d_inner",
        48,
    ),
    (r"intermediate_size_mlp", 48),
    (r"(\w+_)?vocab_size(_per_layer_input)?", VOCAB_SIZE),
    (r"original_max_position_embeddings", LEARNED_LEN),
    (r"max_(\w+_)?position(_embedding)?s|n_positions|max_seq_len|n_ctx|model_max_length", CONTEXT_LEN),
    (r"context_length", CONTEXT_LEN),
    (r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts", 2),
    (r"((moe_)?num|n)_(routed_|local_)?experts|zero_expert_num", 8),
    (r"n_group|num_expert_group", 2),
    (
        r"topk_group|n_shared_experts|(\w+_)?num_shared_experts|first_k_dense_replace|num_dense_layers",
        1,
    ),
    (
        r"sliding_window(_size)?|(local_)?attention_window(_size|_len)?|local_attention|window_size",
        WINDOW,
    ),
    (r"(keep_window|attention_chunk)_size|local_attention_window_len", WINDOW),
)
DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "decoder_layers",
    "num_decoder_layers",
)
DEPTH = re.compile(rf"{'|'.join(DEPTHS)}|encoder_layers|num_encoder_layers|num_blocks|depth")
LAYER_INDICES = re.compile(r"\w+_layers|\w*layer_ids|\w+_idxs|\w+_layers?_indices")
DRAWN_WITH = re.compile(r"\w*initializer_range|\w*init_std")
SPECIAL = re.compile(r"(\w+_)?(bos|eos|pad|sep|cls|mask|unk|start)_token_id")
SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # all others 3
PLACEHOLDER = re.compile(r"\w+_token_(id|index)")  # of images and the like
SWITCHED_ON = {"is_decoder", "causal"}
GIVEN = {"head_dim": HEAD_DIM, "num_key_value_heads": NUM_KV_HEADS}  # where None would be derived
NOISE = 0.1  # on vectors: an engine that forgets biases of 0 or norms of 1 would not show it


@dataclass(frozen=True, slots=True)
class Toy:
    """A type in one form; an empty `form` is the type as its default configuration has it."""

    model_type: str
    form: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.model_type}, {self.form}" if self.form else self.model_type

    def config(self) -> PreTrainedConfig:
        kind = CONFIG_MAPPING[self.model_type]
        return kind(**merged(small(kind(), FIXES), self.changes))

    def build(self, seed: int) -> PreTrainedModel:
        """Returns the model on the CPU, in float32 and eval mode. All weights are drawn anew: with a
        wide spread, and with noise where the library would put zeros or ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
            for weight in model.parameters():
                _draw(weight.data)
        return model.eval().requires_grad_(False)


def model_types() -> tuple[str, ...]:
    return tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def toys_of(model_type: str) -> list[Toy]:
    """Returns the toys of a type, its default form first."""
    with quiet():
        forms = {"": {}, **dict(_window_forms(model_type)), **FORMS.get(model_type, {})}
    return [Toy(model_type, form, changes) for form, changes in forms.items()]


def _window_forms(model_type: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the form with the window switched the other way, if the type has such a switch."""
    kind: Any = CONFIG_MAPPING[model_type]
    try:
        config = kind()
    except Exception:  # building the toy reports why
        return
    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_window" not in vars(config) or not kinds <= {FULL, SLIDING}:
        return
    if config.sliding_window and not kinds:
        with suppress(Exception):  # the type requires a window
            kind(sliding_window=None)
            yield "without a window", {"sliding_window": None}
    elif SLIDING not in kinds:
        layer_types = {"layer_types": [FULL, SLIDING]} if kinds else {}
        switch = {"use_sliding_window": True} if hasattr(config, "use_sliding_window") else {}
        yield "with a window", {"sliding_window": WINDOW, **layer_types, **switch}


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' warnings about default configurations."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _draw(weight: Tensor) -> None:
    if weight.dim() < 2:
        weight.add_(torch.randn_like(weight), alpha=NOISE)
    else:
        weight.normal_(std=SPREAD)


def small(config: PreTrainedConfig, fixes: Fixes) -> dict[str, Any]:
    """Returns keyword arguments for the configuration's class, nested configurations included. `fixes`
    by model type override all else."""
    picked = picked_layers(config)
    values = dict(_changed(config, picked, fixes))
    if isinstance(vars(config).get("kv_lora_rank"), int):  # one latent for all heads
        values["num_key_value_heads"] = values.get("num_attention_heads", 4)
        values["head_dim"] = values.get("qk_rope_head_dim", 8)
    return merged(values, fixes.get(config.model_type, {}))


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Merges tables: later ones win, and nested tables are merged likewise."""
    result: dict[str, Any] = {}
    for table in tables:
        for name, new in table.items():
            old = result.get(name)
            is_table = isinstance(old, dict) and isinstance(new, dict)
            result[name] = merged(old or {}, new) if is_table else new
    return result


def picked_layers(config: PreTrainedConfig) -> tuple[int, ...]:
    """Returns which layers of the default configuration the toy has, ascending; two at least."""
    depth = _depth(config)
    lists = [value for value in vars(config).values() if _is_per_layer(value, depth)]
    first: dict[str, int] = {}
    for layer in range(depth):
        first.setdefault(repr([each[layer] for each in lists]), layer)
    picked = list(first.values())[:MOST_LAYERS]
    return tuple(sorted({*picked, *range(min(depth, 2 if len(picked) < 2 else 0))}))


def _changed(
    config: PreTrainedConfig, picked: Sequence[int], fixes: Fixes
) -> Iterator[tuple[str, Any]]:
    depth = _depth(config)
    new: object
    for name, value in vars(config).items():
        if name.startswith("_"):
            continue
        if isinstance(value, PreTrainedConfig):
            kind = {"model_type": value.model_type} if value.model_type else {}
            yield name, small(value, fixes) | kind
            continue
        if _is_per_layer(value, depth):
            new = [_small(name, value[layer]) for layer in picked]
        elif LAYER_INDICES.fullmatch(name) and isinstance(value, list):
            new = [place for place, layer in enumerate(picked) if layer in value]
        elif DEPTH.fullmatch(name) and type(value) is int:
            new = len(picked) if name in DEPTHS else 2
        elif name == "rope_parameters" and value:
            new = _small_rope(value)
        else:
            new = _small(name, value)
        if new != value:
            yield name, new


def _small(name: str, value: Any) -> Any:
    """Returns the value of one field, or of one layer's entry."""
    if value is None:
        return GIVEN.get(name)
    if SPECIAL.fullmatch(name) and isinstance(value, int | list):
        return SPECIAL_IDS.get(name, 3)
    if type(value) is bool:
        return value or name in SWITCHED_ON
    if type(value) is int:
        return min(value, VOCAB_SIZE - 1 if PLACEHOLDER.fullmatch(name) else _most(name, value))
    if type(value) is float and DRAWN_WITH.fullmatch(name):
        return SPREAD
    return value


def _most(name: str, value: int) -> int:
    return next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), value)


def _small_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _small_rope(each) if isinstance(each, dict) else _small(name, each)
        for name, each in rope.items()
    }


def _depth(config: PreTrainedConfig) -> int:
    """Returns the number of layers; 0 if the configuration does not say."""
    values = vars(config)
    return next((values[name] for name in DEPTHS if type(values.get(name)) is int), 0)


def _is_per_layer(value: Any, depth: int) -> bool:
    return isinstance(value, list | tuple) and depth > 1 and len(value) == depth
