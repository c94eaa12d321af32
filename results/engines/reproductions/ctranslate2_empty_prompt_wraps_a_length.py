"""CTranslate2 4.8.5: an empty prompt is refused only since a length that wrapped around is too large.

Exit status 1: reproduced. With include_prompt_in_result=True it is refused in words. With False,
`run_generation` in src/models/language_model.cc (read at 4.8.1) first takes `min_prompt_length - 1`,
which is unsigned, and makes a vector of that many tokens from the prompt.
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


def told(includes_prompt: bool) -> str:
    try:
        results = generator.generate_batch([[]], include_prompt_in_result=includes_prompt, max_length=8)
    except ValueError as error:
        return str(error)
    return f"answered with {results[0].sequences_ids}"


refused, wrapped = told(True), told(False)
print("include_prompt_in_result=True: ", refused)
print("include_prompt_in_result=False:", wrapped, "- should be refused in words as above")
sys.exit("vector" in wrapped)
