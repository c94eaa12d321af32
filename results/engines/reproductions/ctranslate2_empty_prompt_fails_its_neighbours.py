"""CTranslate2 4.8.5: an empty prompt in a batch fails the good prompts beside it as well."""

import transformers
from setup_ctranslate2 import converted, tiny

model = tiny(transformers.GPT2Config, n_positions=64, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
generator = converted(model)


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
raise SystemExit(is_broken)
