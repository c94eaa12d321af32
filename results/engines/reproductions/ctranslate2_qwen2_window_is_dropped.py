"""CTranslate2 4.8.5: the converter drops the sliding window of a Qwen2, in all layers or in some.

An answer is "explained" if transformers gives it too without windows.
"""

import transformers
from setup_ctranslate2 import answered, converted, tiny
from setup_greedy import greedy

WINDOW, NUM = 6, 8
FULL, WINDOWED = "full_attention", "sliding_attention"


def with_layers(*kinds: str) -> transformers.PreTrainedModel:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": list(kinds)}
    return tiny(transformers.Qwen2Config, intermediate_size=128, num_key_value_heads=2, **windows)


prompt = [(37 * i + 11) % 256 for i in range(12)]
is_wrong = False
for kinds in ((FULL, FULL), (WINDOWED, FULL), (WINDOWED, WINDOWED)):
    model = with_layers(*kinds)
    right = greedy(model, prompt, NUM)
    (got,) = answered(converted(model), [prompt], NUM)
    told = "right" if got == right else "wrong"
    if got != right and got == greedy(with_layers(FULL, FULL), prompt, NUM):
        told += ", explained"
    print(f"{', '.join(kinds)}: {got}, should be {right} ({told})")
    is_wrong |= got != right
raise SystemExit(is_wrong)
