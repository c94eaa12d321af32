"""Values for toys that cannot be derived from the names of configuration fields."""

from __future__ import annotations

from typing import Any

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
