"""CTranslate2 4.8.5: an empty prompt in a batch fails the good prompts beside it as well.

Exit status 1: reproduced. Nothing looks at the prompts before they are batched: the error is that of
the sub-batch, and names no prompt. A caller gets no answer to any of them, and has to find out by
asking again which was the bad one.
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


def answers(prompts: list[list[str]], includes_prompt: bool) -> list[str]:
    results = generator.generate_batch(
        prompts,
        **{"include_prompt_in_result": includes_prompt, "max_length": 8, "end_token": []},
        asynchronous=True,
    )
    told = []
    for each in results:
        try:
            told.append(f"{len(each.result().sequences_ids[0])} tokens")
        except (RuntimeError, ValueError) as error:
            told.append(str(error))
    return told


good = [["t1", "t2"], ["t3", "t4", "t5"]]
is_broken = False
for includes_prompt in (False, True):
    alone = answers(good, includes_prompt)
    beside = answers([*good, []], includes_prompt)
    is_broken |= beside[:2] != alone
    print(f"include_prompt_in_result={includes_prompt}: alone {alone}, beside an empty prompt {beside}")
sys.exit(is_broken)
