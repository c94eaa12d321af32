"""CTranslate2 4.8.5: what a repetition_penalty counts depends on the other prompts of the batch."""

import sys

import transformers
from setup_ctranslate2 import converted, tiny

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)

prompt, answers = [9, 20, 31, 42, 53, 206, 164], []
for others in ([], [[7, 8]]):
    words = [[f"t{token}" for token in each] for each in (prompt, *others)]
    results = generator.generate_batch(
        words,
        max_length=6,
        end_token=[],
        include_prompt_in_result=False,
        repetition_penalty=1.5,
    )
    answers.append(results[0].sequences_ids[0])
    print(f"beside {others}: {answers[-1]}")
sys.exit(answers[0] != answers[1])
