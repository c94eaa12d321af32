"""CTranslate2 4.8.5: a prompt beyond the sliding window, fed at once, is attended to beyond it.

An answer is "explained" if transformers gives it too where the queries of a chunk as long as the window
see all of the chunk before.
"""

import torch
import transformers
from setup_ctranslate2 import answered, converted, tiny

WINDOW, NUM = 6, 8
heads = {"num_key_value_heads": 2, "head_dim": 16}
model = tiny(transformers.MistralConfig, intermediate_size=128, sliding_window=WINDOW, **heads)
generator = converted(model)


def greedy(prompt: list[int], num_in_chunks: int = 0) -> list[int]:
    """The first positions may see what the library's chunks see, the others see the window."""
    ids = list(prompt)
    for _ in range(NUM):
        query, key = torch.arange(len(ids))[:, None], torch.arange(len(ids))
        first = torch.where(query < num_in_chunks, (query // WINDOW - 1) * WINDOW, query - WINDOW + 1)
        mask = ((first <= key) & (key <= query))[None, None] if num_in_chunks else None
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


is_wrong = False
for length in (5, 7, 10, 12, 20):
    prompt = [(37 * i + 11) % 256 for i in range(length)]
    right, (got,) = greedy(prompt), answered(generator, [prompt], NUM)
    # A prompt that is in the result is fed token by token, and counted.
    (whole,) = answered(generator, [prompt], length - 1 + NUM, include_prompt_in_result=True)
    told = "right" if got == right else "wrong"
    told += ", explained" if got == greedy(prompt, length - 1) else ", not explained"
    told += ", token by token " + ("right" if whole[-NUM:] == right else "wrong")
    print(f"prompt of {length}, window {WINDOW}: {got}, should be {right} ({told})")
    is_wrong |= got != right
raise SystemExit(is_wrong)
