"""llama.cpp: its converter drops the `rope_theta` of a Gemma 2, and the model is computed with
10,000."""

from setup_greedy import greedy
from setup_llama import answered, converted, served, tiny
from transformers import Gemma2Config

NUM = 8
sizes = {"num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16}
prompt = [(37 * i + 11) % 250 + 3 for i in range(20)]
is_wrong = False
for theta in (10_000.0, 100.0):
    rope = {"rope_type": "default", "rope_theta": theta}
    model = tiny(Gemma2Config, rope_parameters=rope, tie_word_embeddings=True, **sizes)
    model.model.embed_tokens.weight.data /= 50  # the head is tied to it: else each token repeats itself
    with served(converted(model)) as address:
        got = answered(address, prompt, NUM)
    right = greedy(model, prompt, NUM)
    print(f"rope_theta {theta:g}: {got}, should be {right}")
    is_wrong |= got != right
raise SystemExit(is_wrong)
