"""llama.cpp's server: a prompt that is restored into a slot is overwritten by a copy that was left over
there."""

from setup_greedy import greedy
from setup_llama import answered, asked, converted, served, tiny

NUM = 8
model = tiny()
gguf = converted(model)
first, second, third = ([(step * i + 11) % 250 + 3 for i in range(40)] for step in (37, 91, 53))
is_wrong = False
for name, flags, num in [("one KV cache", ["--kv-unified"], 1), ("two tokens", [], 2), ("default", [], 1)]:
    with served(gguf, "-np", "2", *flags) as address:
        answered(address, first, NUM)
        answered(address, second, NUM)
        asked(address, "/completion", {"prompt": third, "n_predict": num, "n_cmpl": 2, "temperature": 0})
        prompt = [*first, 7, 8]
        got = answered(address, prompt, NUM)
    right = greedy(model, prompt, NUM)
    print(f"{name}: {got}, should be {right}")
    is_wrong |= got != right
raise SystemExit(is_wrong)
