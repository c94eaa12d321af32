"""CTranslate2 4.8.5: more tokens than the model has positions are answered."""

import transformers
from setup_ctranslate2 import answered, converted, tiny

settings = {"max_position_embeddings": 64, "intermediate_size": 128, "bos_token_id": 0, "eos_token_id": 0}
is_answered = False
for config_class in (transformers.LlamaConfig, transformers.GPT2Config):
    generator = converted(tiny(config_class, **settings))
    for num_prompt, cap in ((60, 4), (60, 40), (100, 4)):
        try:
            answers = answered(generator, [[1, 2, 3], [*range(1, num_prompt + 1)]], cap)
            told = f"answers of {[len(each) for each in answers]} tokens"
            is_answered |= num_prompt + cap > 65  # the last token of an answer is never fed
        except (RuntimeError, ValueError) as error:
            told = f"raised: {error}"
        name = config_class.__name__
        print(f"{name}, 64 positions, prompts of 3 and {num_prompt}, max_length {cap}: {told}")
raise SystemExit(is_answered)
