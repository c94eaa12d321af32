"""CTranslate2 4.8.5: the converter drops the sliding window of a Qwen2, in all layers or in some.

Exit status 1: reproduced. `Qwen2Loader` in the released ctranslate2/converters/transformers.py reads
neither use_sliding_window nor sliding_window nor layer_types, so every layer attends to everything. An
answer is "explained" if transformers gives it too without windows.
"""

import sys
import tempfile

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

WINDOW, NUM = 6, 8
shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
FULL, WINDOWED = "full_attention", "sliding_attention"


def tiny(*kinds: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        use_sliding_window=True, sliding_window=WINDOW, layer_types=list(kinds), **shape, **heads
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def converted(model: transformers.PreTrainedModel) -> ctranslate2.Generator:
    vocabulary = {f"t{i}": i for i in range(256)}
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t0")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        transformers.GPT2Tokenizer(vocab=vocabulary, merges=[], **special).save_pretrained(folder)
        TransformersConverter(folder).convert(f"{folder}/converted")
        return ctranslate2.Generator(f"{folder}/converted", compute_type="float32")


def greedy(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


prompt = [(37 * i + 11) % 256 for i in range(12)]
words = [f"t{token}" for token in prompt]
is_wrong = False
for kinds in ((FULL, FULL), (WINDOWED, FULL), (WINDOWED, WINDOWED)):
    right = greedy(tiny(*kinds), prompt)
    (result,) = converted(tiny(*kinds)).generate_batch(
        [words], include_prompt_in_result=False, max_length=NUM, end_token=[]
    )
    (got,) = result.sequences_ids
    told = "right" if got == right else "wrong"
    if got != right and got == greedy(tiny(FULL, FULL), prompt):
        told += ", explained"
    print(f"{', '.join(kinds)}: {got}, should be {right} ({told})")
    is_wrong |= got != right
sys.exit(is_wrong)
