"""llama.cpp's server: parameters out of their range are changed or dropped without a word."""

from setup_llama import asked, converted, served, tiny

WRONG = {
    "top_p": 1.5,
    "min_p": 2.0,
    "top_k": -3,
    "mirostat": 7,
    "logit_bias": [[256, 2.0]],
    "n_probs": -1,
    "repeat_penalty": 0.0,  # this and the next are refused
    "n_keep": -2,
}
num_answered = 0
with served(converted(tiny())) as address:
    for name, value in WRONG.items():
        answer = asked(address, "/completion", {"prompt": [5, 6, 7], "n_predict": 2, name: value})
        if "error" in answer:
            print(f"{name} {value}: refused, {answer['error']['message']}")
        else:
            used = answer["generation_settings"][name]
            print(f"{name} {value}: answered with {name} {used}, should be refused")
            num_answered += 1
raise SystemExit(num_answered > 0)
