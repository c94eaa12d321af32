"""mistral.rs 0.9.5: where a token cannot be sampled, the requests behind it in its batch get none in that
step, and go on one key ahead of their tokens."""

import math
import sys
import tempfile

from setup_mistralrs import answer, runner, same, save, stream, told

is_wrong = False
with tempfile.TemporaryDirectory() as folder:
    save(folder)
    prompts = [[4, 2, 3], [7, 8, 9]]
    alone = answer(folder, prompts[1], 60)
    for name, value in {"top_k": 1, "repetition_penalty": 0.0, "logit_bias": {5: math.nan}}.items():
        engine = runner(folder)
        streams = [stream(engine, prompts[0], 60, **{name: value}), stream(engine, prompts[1], 60)]
        first, second = map(told, streams)
        print(f"{name} {value}: {first if isinstance(first, str) else 'answered'}; its neighbour: {same(second, alone)} of 60 tokens as alone")
        is_wrong |= second != alone
sys.exit(is_wrong)
