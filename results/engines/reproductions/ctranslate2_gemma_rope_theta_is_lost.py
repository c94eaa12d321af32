"""CTranslate2 4.8.5: a Gemma of transformers 5 is converted with rope_theta 10000, whatever it has.

An answer is "explained" if transformers gives it too with 10000.
"""

import transformers
from setup_ctranslate2 import answered, converted, tiny
from setup_greedy import greedy


def with_theta(config_class: type, theta: float) -> transformers.PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": theta}
    heads = {"num_key_value_heads": 2, "head_dim": 16}
    return tiny(config_class, intermediate_size=128, rope_parameters=rope, **heads)


prompt = [9, 20, 31, 42, 53, 64, 75]
is_wrong = False
for config_class in (transformers.LlamaConfig, transformers.GemmaConfig):
    for theta in (10000.0, 50.0):
        model = with_theta(config_class, theta)
        right = greedy(model, prompt, 10)
        (got,) = answered(converted(model), [prompt], 10)
        told = "right" if got == right else "wrong"
        if got != right and got == greedy(with_theta(config_class, 10000.0), prompt, 10):
            told += ", explained"
        print(f"{config_class.__name__}, rope_theta {theta}: {got}, should be {right} ({told})")
        is_wrong |= got != right
raise SystemExit(is_wrong)
