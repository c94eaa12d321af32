"""CTranslate2 4.8.5: what a repetition_penalty counts depends on the other prompts of the batch."""

import transformers
from setup_ctranslate2 import answered, converted, tiny

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)

prompt, answers = [9, 20, 31, 42, 53, 206, 164], []
for others in ([], [[7, 8]]):
    answers.append(answered(generator, [prompt, *others], 6, repetition_penalty=1.5)[0])
    print(f"beside {others}: {answers[-1]}")
raise SystemExit(answers[0] != answers[1])
