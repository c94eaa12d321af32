"""The gate in front of a user's model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from batchproof.models.catalogue import ModelUnderTest, load_model
from batchproof.models.embedded import EMBEDDED
from batchproof.oracle.adequacy import LEAST_FLIP_RATE, measure_adequacy


@pytest.mark.parametrize("name", [name for name, each in EMBEDDED.items() if each.oracle is None])
def test_a_random_model_shows_damage_in_its_tokens(name: str) -> None:
    subject = load_model(name, torch.device("cpu"), torch.float32)
    adequacy = measure_adequacy(subject)
    assert adequacy.is_adequate, str(adequacy)
    assert adequacy.wrong_first_token > 3 * LEAST_FLIP_RATE, "an embedded model must do far better"


def test_a_model_of_default_initialisation_is_inadequate() -> None:
    """Standard deviation 0.02 and a tied head: it repeats itself whatever it is fed."""
    assert not measure_adequacy(ModelUnderTest("default-init", default_gpt2())).is_adequate


def test_a_checkpoint_on_disk_is_loaded_by_path(tmp_path: Path) -> None:
    default_gpt2().save_pretrained(tmp_path)
    subject = load_model(str(tmp_path), torch.device("cpu"), torch.float32)
    assert subject.encode("bytes") == tuple(b"bytes"), "without a tokenizer, bytes are the tokens"
    assert not subject.is_embedded


def default_gpt2() -> GPT2LMHeadModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=4)
        return GPT2LMHeadModel(config).eval()
