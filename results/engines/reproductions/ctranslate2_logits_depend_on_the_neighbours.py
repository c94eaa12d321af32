"""CTranslate2 4.8.5: the logits of an answer depend on the other prompts of its batch."""

import ctranslate2
import numpy as np
import transformers
from setup_ctranslate2 import converted, tiny

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)

is_wrong = False
for others in ([], [[7, 8]]):
    sizes = []

    def note(step: ctranslate2.GenerationStepResult, sizes: list[int] = sizes) -> bool:
        sizes.append(np.array(step.logits).size)
        return False

    words = [[f"t{token}" for token in each] for each in ([9, 20, 31, 42, 53], *others)]
    options = {"return_logits_vocab": True, "include_prompt_in_result": False}
    results = generator.generate_batch(words, max_length=2, end_token=[], callback=note, **options)
    answer = results[0].sequences_ids[0]
    best = [int(np.array(row).argmax()) for row in results[0].logits[0]]
    print(f"beside {others}: {answer} has logits with the best tokens {best}")
    print(f"  logits of the callback's steps: {sizes}, should be 256 each")
    is_wrong |= best != answer or set(sizes) != {256}
raise SystemExit(is_wrong)
