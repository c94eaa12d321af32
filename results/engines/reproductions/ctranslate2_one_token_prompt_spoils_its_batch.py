"""CTranslate2 4.8.5: beside a prompt of one token, the others are answered with their own prompt.

Exit status 1: reproduced. With include_prompt_in_result=False, prompts are fed at once as far as the
shortest of the batch, less one token. `run_generation` in src/models/language_model.cc (read at 4.8.1)
sets `return_prefix = false` only inside of `if (forward_length > 0)`. A prompt of one token makes that
length 0, so the other prompts are returned, but for their first token, and max_length counts them.
"""

import sys

import transformers
from setup_ctranslate2 import converted, tiny
from setup_greedy import greedy

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)

prompt = [9, 20, 31, 42, 53]
right = greedy(model, prompt, 8)
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
