"""mistral.rs 0.9.5: on a CPU, requests of an LFM2 that are decoded together fail."""

import sys
import tempfile

from setup_mistralrs import HIDDEN, VOCAB_SIZE, answer, runner, save, stream, told

KINDS = ["conv", "full_attention"]
shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN), "model.embedding_norm.weight": (HIDDEN,)}
for index, kind in enumerate(KINDS):
    layer = f"model.layers.{index}."
    shapes |= {f"{layer}{name}.weight": (HIDDEN,) for name in ("operator_norm", "ffn_norm")}
    shapes |= {f"{layer}feed_forward.{name}.weight": (HIDDEN, HIDDEN) for name in ("w1", "w2", "w3")}
    if kind == "conv":
        shapes |= {f"{layer}conv.conv.weight": (HIDDEN, 1, 3), f"{layer}conv.in_proj.weight": (3 * HIDDEN, HIDDEN)}
        shapes |= {f"{layer}conv.out_proj.weight": (HIDDEN, HIDDEN)}
    else:
        shapes |= {f"{layer}self_attn.{name}.weight": (HIDDEN, HIDDEN) for name in ("q_proj", "out_proj")}
        shapes |= {f"{layer}self_attn.{name}_proj.weight": (HIDDEN // 2, HIDDEN) for name in "kv"}
        shapes |= {f"{layer}self_attn.{name}_layernorm.weight": (32,) for name in "qk"}
sizes = {"layer_types": KINDS, "intermediate_size": HIDDEN, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "conv_bias": False}
sizes |= {"norm_eps": 1e-5, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
prompts = [[1, 2, 3], [4, 5, 6]]
with tempfile.TemporaryDirectory() as folder:
    save(folder, "Lfm2ForCausalLM", shapes, **sizes, max_position_embeddings=4096)
    alone = [answer(folder, prompt, 6) for prompt in prompts]
    engine = runner(folder)
    together = [told(each) for each in [stream(engine, prompt, 6) for prompt in prompts]]
    print(f"alone:    {alone}\ntogether: {together}")
sys.exit(together != alone)
