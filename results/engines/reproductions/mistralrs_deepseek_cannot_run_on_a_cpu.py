"""mistral.rs 0.9.5: on a CPU, every request of a DeepSeek V3 fails, as its values are narrower than its
keys."""

import sys
import tempfile

from setup_mistralrs import HEADS, HIDDEN, INTERMEDIATE, VOCAB_SIZE, runner, save, stream, told

RANK, NOPE, ROPE = 512, 32, 64
is_wrong = False
for width in (NOPE + ROPE, NOPE):
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (VOCAB_SIZE, HIDDEN) for name in ("model.embed_tokens", "lm_head")}
    shapes |= {"model.norm.weight": (HIDDEN,)}
    layer = "model.layers.0."
    shapes |= {f"{layer}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    shapes |= {f"{layer}mlp.{name}_proj.weight": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
    shapes |= {f"{layer}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE), f"{layer}self_attn.kv_a_layernorm.weight": (RANK,)}
    shapes |= {f"{layer}self_attn.kv_a_proj_with_mqa.weight": (RANK + ROPE, HIDDEN), f"{layer}self_attn.q_proj.weight": (HEADS * (NOPE + ROPE), HIDDEN)}
    shapes |= {f"{layer}self_attn.kv_b_proj.weight": (HEADS * (NOPE + width), RANK), f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * width)}
    sizes = {"num_hidden_layers": 1, "num_key_value_heads": HEADS, "attention_bias": False, "q_lora_rank": None, "kv_lora_rank": RANK, "v_head_dim": width}
    sizes |= {"qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 4}
    sizes |= {"n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1}
    sizes |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 1.0, "norm_topk_prob": True}
    with tempfile.TemporaryDirectory() as folder:
        save(folder, "DeepseekV3ForCausalLM", shapes, **sizes)
        engine = runner(folder)
        answered = told(stream(engine, [1, 2, 3], 4))
    print(f"keys of {NOPE + ROPE} dimensions, values of {width}: {answered}")
    is_wrong |= isinstance(answered, str)
sys.exit(is_wrong)
