"""llama.cpp: the converter drops the sliding window of a Mistral, a Mixtral and a Qwen2.

An answer is "explained" if transformers gives it too without windows.
"""

import transformers
from setup_greedy import greedy
from setup_llama import answered, converted, served, tiny

WINDOW, NUM = 6, 8
heads = {"num_key_value_heads": 2, "head_dim": 16}
experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
KINDS = {
    "Mistral": (transformers.MistralConfig, heads, {"sliding_window": WINDOW}, {"sliding_window": None}),
    "Mixtral": (transformers.MixtralConfig, heads | experts, {"sliding_window": WINDOW}, {"sliding_window": None}),
    "Qwen2, second layer": (
        transformers.Qwen2Config,
        {"num_key_value_heads": 2},
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {},
    ),
}
prompt = [(37 * i + 11) % 250 + 3 for i in range(12)]
is_wrong = False
for name, (config, settings, window, without) in KINDS.items():
    model = tiny(config, **settings, **window)
    right = greedy(model, prompt, NUM)
    with served(converted(model)) as address:
        got = answered(address, prompt, NUM)
    told = "right" if got == right else "wrong"
    if got != right and got == greedy(tiny(config, **settings, **without), prompt, NUM):
        told += ", explained"
    print(f"{name}: {got}, should be {right} ({told})")
    is_wrong |= got != right
raise SystemExit(is_wrong)
