"""mistral.rs 0.9.5: on a CPU, every request of a DeepSeek V3 fails, as its values are narrower than its
keys."""

import sys
import tempfile

from setup_mistralrs import HEADS, HIDDEN, runner, save, stream, told

RANK, NOPE, ROPE = 512, 32, 64
is_wrong = False
for width in (NOPE + ROPE, NOPE):
    layer = "model.layers.0.self_attn."
    others = {f"{layer}kv_a_layernorm": (RANK,), f"{layer}kv_a_proj_with_mqa": (RANK + ROPE, HIDDEN)}
    others |= {f"{layer}q_proj": (HEADS * (NOPE + ROPE), HIDDEN), f"{layer}kv_b_proj": (HEADS * (NOPE + width), RANK)}
    others |= {f"{layer}o_proj": (HIDDEN, HEADS * width)}
    sizes = {"num_hidden_layers": 1, "num_key_value_heads": HEADS, "attention_bias": False, "q_lora_rank": None, "kv_lora_rank": RANK, "v_head_dim": width}
    sizes |= {"qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 4}
    sizes |= {"n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1}
    sizes |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 1.0, "norm_topk_prob": True}
    with tempfile.TemporaryDirectory() as folder:
        save(folder, "DeepseekV3ForCausalLM", others, **sizes)
        engine = runner(folder)
        answered = told(stream(engine, [1, 2, 3], 4))
    print(f"keys of {NOPE + ROPE} dimensions, values of {width}: {answered}")
    is_wrong |= isinstance(answered, str)
sys.exit(is_wrong)
