"""MLX-LM 0.32.2: in a batch of unequal prompts, padding enters the states of Mamba, Jamba, RWKV 7 and
Recurrent Gemma.

Mamba 2 masks it and is right.
"""

from setup_mlx import answers, tiny

mamba = {"conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4, "state_size": 8}
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "tie_word_embeddings": False}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 256}
jamba = {"attn_layer_offset": 3, "attn_layer_period": 4, "expert_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2}
jamba |= {"mamba_d_conv": 4, "mamba_d_state": 8, "mamba_expand": 2, "num_experts_per_tok": 1, "mamba_dt_rank": 4}
gemma = {"attention_bias": False, "conv1d_width": 4, "logits_soft_cap": 30.0, "rope_theta": 1e4, "attention_window_size": 64}
gemma |= {"embeddings_scale_by_sqrt_dim": True, "block_types": ["recurrent", "attention"], "lru_width": 32}
rwkv = {"norm_eps": 1e-5, "a_low_rank_dim": 4, "v_low_rank_dim": 4, "gate_low_rank_dim": 4, "decay_low_rank_dim": 4, "head_dim": 16}
mamba2 = {**mamba, "num_heads": 4, "head_dim": 16, "n_groups": 1, "layer_norm_epsilon": 1e-5, "ssm_state_size": 8}
mamba2 |= {"time_step_limit": (0.0, 100.0), "max_position_embeddings": 256}
models = {
    "mamba": mamba,
    "jamba": {**heads, **jamba, "num_hidden_layers": 4},
    "recurrent_gemma": {**heads, **gemma},
    "rwkv7": rwkv,
    "mamba2": mamba2,
}
short, long = [5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 11, 12, 13, 14]
is_wrong = False
for name, settings in models.items():
    model = tiny(name, **{**sizes, **settings})
    (alone,), (beside, _) = answers(model, [short]), answers(model, [short, long])
    print(f"{name}: {short} alone {alone}, beside one of {len(long)} tokens {beside}{'' if alone == beside else ' WRONG'}")
    is_wrong |= alone != beside
raise SystemExit(is_wrong)
