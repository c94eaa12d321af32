"""The control models are what their golden tokens say, on every machine."""

from __future__ import annotations

import pytest
import torch

from batchproof.models.catalogue import load_model
from batchproof.models.embedded import EMBEDDED
from batchproof.models.random_models import WINDOW, build_mistral_window
from batchproof.oracle.oracle import Oracle
from batchproof.run.registry import reference_factory

PROMPT = tuple(b"golden tokens")
GOLDEN = {
    "gpt2-random": [138, 204, 92, 13, 92, 9, 173, 39, 251, 251, 122, 173],
    "llama-random": [41, 111, 86, 132, 223, 134, 19, 17, 132, 189, 126, 123],
    "mistral-window": [108, 101, 18, 75, 222, 98, 184, 80, 54, 29, 51, 190],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tokens_are_pinned(name: str) -> None:
    """Wide margins, so that no other kernel can flip them."""
    oracle = Oracle(load_model(name, torch.device("cpu"), torch.float32), reference_factory())
    answer = oracle.answer(PROMPT, 12)
    assert list(answer.token_ids) == GOLDEN[name]
    assert min(answer.margin(step) for step in range(12)) > 1000 * oracle.error.max_abs


@pytest.mark.parametrize("name", EMBEDDED)
def test_building_a_model_touches_no_global_state(name: str) -> None:
    before, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    EMBEDDED[name].build()
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_default_dtype() is dtype


def test_the_window_hides_everything_before_it() -> None:
    """With one layer kept, the last query sees exactly `WINDOW` keys."""
    model = build_mistral_window()
    model.config.num_hidden_layers = 1
    prompt = torch.arange(1, 13)[None]
    base = model(prompt, use_cache=False).logits[0, -1]
    for position in range(12):
        changed = prompt.clone()
        changed[0, position] = 200
        moved = not torch.equal(model(changed, use_cache=False).logits[0, -1], base)
        assert moved == (12 - position <= WINDOW), position
