"""CTranslate2 4.8.5: beside a prompt of one token, the others are answered with their own prompt.

Exit status 1: reproduced. With include_prompt_in_result=False, prompts are fed at once as far as the
shortest of the batch, less one token. `run_generation` in src/models/language_model.cc (read at 4.8.1)
sets `return_prefix = false` only inside of `if (forward_length > 0)`. A prompt of one token makes that
length 0, so the other prompts are returned, but for their first token, and max_length counts them.
"""

import sys
import tempfile

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2,
    bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
)
model = transformers.GPT2LMHeadModel(config).eval()
vocabulary = {f"t{i}": i for i in range(256)}
special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t0")
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    transformers.GPT2Tokenizer(vocab=vocabulary, merges=[], **special).save_pretrained(folder)
    TransformersConverter(folder).convert(f"{folder}/converted")
    generator = ctranslate2.Generator(f"{folder}/converted", compute_type="float32")


def greedy(prompt: list[int], num: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


prompt = [9, 20, 31, 42, 53]
right = greedy(prompt, 8)
print("prompt", prompt, "should be answered with", right)
is_wrong = False
for others in ([], [[7, 8]], [[7]]):
    words = [[f"t{token}" for token in each] for each in (prompt, *others)]
    results = generator.generate_batch(
        words, include_prompt_in_result=False, max_length=8, end_token=[]
    )
    (answer,) = results[0].sequences_ids
    print("beside", others, "it is", answer)
    is_wrong |= answer != right
sys.exit(is_wrong)
