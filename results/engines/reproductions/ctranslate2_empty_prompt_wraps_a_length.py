"""CTranslate2 4.8.5: an empty prompt is refused only since a length that wrapped around is too large.

Exit status 1: reproduced. With include_prompt_in_result=True it is refused in words. With False,
`run_generation` in src/models/language_model.cc (read at 4.8.1) first takes `min_prompt_length - 1`,
which is unsigned, and makes a vector of that many tokens from the prompt.
"""

import sys

import transformers
from setup_ctranslate2 import converted, tiny

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)


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
