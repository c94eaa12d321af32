"""llama.cpp's server: a prompt that follows another in its slot is continued from that one's state."""

from setup_greedy import greedy
from setup_llama import answered, converted, served, tiny
from transformers import BambaConfig, Gemma2Config

NUM = 8
heads = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
# All of a head is rotated, as the converter takes it.
rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}
bamba = tiny(BambaConfig, num_key_value_heads=4, attn_layer_indices=[1], **heads, **rope)
window = {"sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}
gemma = tiny(Gemma2Config, num_key_value_heads=2, **window)
gemma.model.embed_tokens.weight.data /= 50  # the head is tied to it: else each token repeats itself
first = [200, 11, 12, 13, 14]
second = [(37 * i + 11) % 250 + 3 for i in range(20)]
third = second[:6] + [7, 8, 9, 10, 11, 12]
is_wrong = False
for name, model in {"bamba": bamba, "gemma2": gemma}.items():
    gguf, right = converted(model), greedy(model, third, NUM)
    for case, before in {"alone": [], "behind the second": [second], "behind both": [first, second]}.items():
        with served(gguf, "-np", "1") as address:
            for each in before:
                answered(address, each, NUM)
            got = answered(address, third, NUM)
        print(f"{name}, {case}: {got}, should be {right}")
        is_wrong |= got != right
raise SystemExit(is_wrong)
