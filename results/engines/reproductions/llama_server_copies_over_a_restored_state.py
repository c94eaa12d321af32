"""llama.cpp's server: a prompt that is restored into a slot is overwritten by a copy that was left over there.

Exit status 1: reproduced. With n_cmpl (or OpenAI's n) above 1 the prompt is computed once and copied to the
slots of the others. Between slots with a KV cache each, `llama_kv_cache::seq_cp` only notes the copy, and the
next decode makes it. If one token was asked for, there is none: the request has ended. The next that takes
the other slot has its state restored from the prompt cache at once (`state_read`), and the decode of its
last tokens first makes the copy that is due, over the restored keys and values. A restored slot file
(POST /slots/0?action=restore) is lost in the same way.
"""

import sys

from setup_greedy import greedy
from setup_llama import answered, asked, converted, served, tiny
from transformers import LlamaConfig

NUM = 8
model = tiny(LlamaConfig, intermediate_size=128)
gguf = converted(model, "llama")
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
sys.exit(is_wrong)
