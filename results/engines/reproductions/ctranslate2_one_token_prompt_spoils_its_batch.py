"""CTranslate2 4.8.5: beside a prompt of one token, the others are answered with their own prompt."""

import transformers
from setup_ctranslate2 import answered, converted, tiny
from setup_greedy import greedy

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)

prompt = [9, 20, 31, 42, 53]
right = greedy(model, prompt, 8)
print("prompt", prompt, "should be answered with", right)
is_wrong = False
for others in ([], [[7, 8]], [[7]]):
    answer, *_ = answered(generator, [prompt, *others], 8)
    print("beside", others, "it is", answer)
    is_wrong |= answer != right
raise SystemExit(is_wrong)
