"""A GPT-2 whose weights are written down, not trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel


def constructed_gpt2(weights: Mapping[str, Tensor], **sizes: Any) -> GPT2LMHeadModel:
    """Returns the model of these weights: float32, CPU, ReLU, untied, no special tokens, eval mode, no
    gradients. `sizes` are fields of its config. Leaves every RNG untouched."""
    nulls: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    nulls |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        **nulls, **sizes, activation_function="relu", tie_word_embeddings=False, dtype="float32"
    )
    # On the meta device nothing is initialised, so nothing is drawn from a generator.
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)
