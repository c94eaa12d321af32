"""`gpt2-long` is what its docstring says, and agrees with its integer oracle."""

from __future__ import annotations

import random

import pytest
import torch

from batchproof.models.catalogue import moved
from batchproof.models.gpt2_long import build_gpt2_long
from batchproof.models.gpt2_long_oracle import NUM_POSITIONS, generate, sources

LENS = (1, 2, 3, 5, 17, 64, 129, 1000)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_step_agrees_with_the_integer_oracle(dtype: torch.dtype, attention: str) -> None:
    model, rng = moved(build_gpt2_long(), "cpu", dtype), random.Random(0)
    model.set_attn_implementation(attention)
    for length in (*LENS, NUM_POSITIONS - 5) if dtype is torch.float32 else LENS:
        prompt = [rng.randrange(256) for _ in range(length)]
        answer = generate(prompt, 6)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, length - 1 :]
        best = logits.float().topk(2)
        assert best.indices[:, 0].tolist() == answer
        assert (best.values[:, 0] - best.values[:, 1]).min() > 3.5


def test_what_a_token_depends_on_changes_it() -> None:
    rng = random.Random(1)
    for length in (2, 20, 300, 4000):
        prompt = [rng.randrange(256) for _ in range(length)]
        read = {length - 1, *sources(length - 1)}
        read |= {source for position in read for source in sources(position)}
        changed = [[*prompt[:p], prompt[p] ^ 37, *prompt[p + 1 :]] for p in sorted(read)]
        is_seen = [generate(each, 1) != generate(prompt, 1) for each in changed]
        assert sum(is_seen) >= 0.8 * len(is_seen)  # two ways to one token may cancel


@pytest.mark.parametrize("prompt", [[], [256], [0] * (NUM_POSITIONS + 1)], ids=["empty", "id", "long"])
def test_what_has_no_answer_is_refused(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        generate(prompt, 1)
