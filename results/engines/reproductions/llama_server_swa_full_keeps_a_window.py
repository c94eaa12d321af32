"""llama.cpp's server with --swa-full: a prompt that comes back from RAM, or from disk, has lost its
keys."""

from setup_greedy import greedy
from setup_llama import answered, asked, converted, scratch, served, tiny
from transformers import Gemma2Config

NUM = 8
window = {"sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}
model = tiny(Gemma2Config, num_key_value_heads=2, **window)
model.model.embed_tokens.weight.data /= 50  # the head is tied to it: else each token repeats itself
gguf = converted(model)
first = [(37 * i + 11) % 250 + 3 for i in range(20)]
other = [200, 11, 12, 13, 14, 15, 16]
third = first[:18] + [7, 8]  # it goes on among the last eight tokens of the first
right = greedy(model, third, NUM)
is_wrong = False
for flags in (["--cache-ram", "0"], []):
    with served(gguf, "-np", "1", "--swa-full", *flags) as address:
        for each in (first, other):
            answered(address, each, 2)
        got = answered(address, third, NUM)
    print(f"--swa-full {' '.join(flags)}: {got}, should be {right}")
    is_wrong |= got != right
with served(gguf, "-np", "1", "--swa-full", "--cache-ram", "0", "--slot-save-path", scratch.name) as address:
    answered(address, first, 2)
    for action in ("save", "restore"):
        asked(address, f"/slots/0?action={action}", {"filename": "slot"})
    got = answered(address, third, NUM)
print(f"--swa-full, saved to disk and restored: {got}, should be {right}")
raise SystemExit(is_wrong or got != right)
