"""mistral.rs 0.9.5: on a CPU, requests of an LFM2 that are decoded together fail; after equal prompts of one token,
which are decoded as well, each row of a batch gets another token."""

import sys
import tempfile

from setup_mistralrs import HIDDEN, answer, runner, save, stream, told

KINDS = ["conv", "full_attention"]
others = {"model.embedding_norm": (HIDDEN,)}
for layer in ("model.layers.0.", "model.layers.1."):
    others |= {f"{layer}{name}": (HIDDEN,) for name in ("operator_norm", "ffn_norm")}
    others |= {f"{layer}feed_forward.{name}": (HIDDEN, HIDDEN) for name in ("w1", "w2", "w3")}
others |= {"model.layers.0.conv.conv": (HIDDEN, 1, 3), "model.layers.0.conv.in_proj": (3 * HIDDEN, HIDDEN)}
others |= {"model.layers.0.conv.out_proj": (HIDDEN, HIDDEN), "model.layers.1.self_attn.out_proj": (HIDDEN, HIDDEN)}
others |= {f"model.layers.1.self_attn.{name}_layernorm": (32,) for name in "qk"}
sizes = {"layer_types": KINDS, "intermediate_size": HIDDEN, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "conv_bias": False}
sizes |= {"norm_eps": 1e-5, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
prompts = [[1, 2, 3], [4, 5, 6]]
with tempfile.TemporaryDirectory() as folder:
    save(folder, "Lfm2ForCausalLM", others, **sizes, max_position_embeddings=4096)
    alone = [answer(folder, prompt, 6) for prompt in prompts]
    engine = runner(folder)
    together = [told(each) for each in [stream(engine, prompt, 6) for prompt in prompts]]
    print(f"alone:    {alone}\ntogether: {together}")
    one, rows = answer(folder, [7], 1), [told(each) for each in [stream(engine, [7], 1) for _ in range(4)]]
    print(f"a prompt of one token, alone: {one}, four at once: {rows}")
sys.exit(together != alone or any(row != one for row in rows))
