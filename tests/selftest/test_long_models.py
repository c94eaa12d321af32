"""The constructed models of 4,096 positions are what their docstrings say, and agree with their integer
oracles."""

from __future__ import annotations

import random

import pytest
import torch

from batchproof.models.catalogue import moved
from batchproof.models.embedded import EMBEDDED
from batchproof.models.gpt2_long_oracle import generate, sources
from batchproof.models.window_hash import build_mistral_hash, build_mixtral_hash
from batchproof.models.window_hash_oracle import NUM_POSITIONS, WINDOW
from batchproof.oracle.coarse import ROUNDED_ATTENTION, _register

NAMES = ("gpt2-long", "mistral-hash", "mixtral-hash")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENS = (1, 2, 3, 5, 7, 8, 9, 10, 17, 64, 129, 1000)
INT8 = "int8"


@pytest.mark.parametrize("attention", ["sdpa", "eager", INT8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_step_agrees_with_the_integer_oracle(
    name: str, dtype: torch.dtype, attention: str
) -> None:
    """`INT8`: with keys and values in 8 bits. The first token has all bits set: large sums."""
    _register()
    entry, rng = EMBEDDED[name], random.Random(0)
    model = moved(entry.build(), "cpu", dtype)
    model.set_attn_implementation(ROUNDED_ATTENTION if attention == INT8 else attention)
    is_quick = dtype is torch.float32 and attention == "sdpa"
    assert entry.oracle is not None
    for length in (*LENS, NUM_POSITIONS - 5) if is_quick else LENS:
        prompt = [255] + [rng.randrange(256) for _ in range(length - 1)]
        answer = entry.oracle(prompt, 6)
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


@pytest.mark.parametrize("window", [WINDOW - 1, WINDOW + 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_window_one_key_off_changes_nearly_every_token(dtype: torch.dtype, window: int) -> None:
    rng = random.Random(2)
    prompt = torch.tensor([[rng.randrange(256) for _ in range(200)]])
    right, wrong = (moved(build_mistral_hash(), "cpu", dtype) for _ in range(2))
    wrong.config.sliding_window = window
    flipped = right(prompt).logits.argmax(-1) != wrong(prompt).logits.argmax(-1)
    assert flipped[0, WINDOW:].float().mean() > 0.9


def test_the_expert_a_token_is_sent_to_changes_the_next_token() -> None:
    rng = random.Random(3)
    prompt = torch.tensor([[rng.randrange(256) for _ in range(200)]])
    model = build_mixtral_hash()
    right = model(prompt).logits.argmax(-1)
    for layer in model.model.layers:
        layer.mlp.gate.weight.copy_(layer.mlp.gate.weight.roll(1, 0))
    assert (model(prompt).logits.argmax(-1) != right).float().mean() > 0.9


@pytest.mark.parametrize("prompt", [[], [256], [0] * (NUM_POSITIONS + 1)], ids=["empty", "id", "long"])
@pytest.mark.parametrize("name", NAMES)
def test_what_has_no_answer_is_refused(name: str, prompt: list[int]) -> None:
    oracle = EMBEDDED[name].oracle
    assert oracle is not None
    with pytest.raises(ValueError, match="must be"):
        oracle(prompt, 1)
