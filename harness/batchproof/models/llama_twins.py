"""`llama-twins`: `llama-hash` with a ruler. Tokens 2k and 2k + 1 are *twins*: the hash names the pair,
and an analog sum decides between the two.

The head of `llama-hash` ignores the last bit of the state, so twins differ in what they read from the
soft channels alone. These hold small sums over every visible key, so the margin between twins is like
that of a trained model: any size from 0 to 0.9, evenly spread near 0. Every other pair is behind by at
least 2.4. So one answer shows both, in its tokens alone: another pair is corruption, which no rounding
explains in any dtype; the other twin is a near-tie, and the largest margin at which an engine takes it
measures the engine's rounding.
"""

from __future__ import annotations

from transformers import LlamaForCausalLM

from batchproof.models.llama_hash import build_llama_hash
from batchproof.models.llama_hash_oracle import STATE_BITS


def build_llama_twins() -> LlamaForCausalLM:
    """Returns the model: float32, on the CPU, eval mode, gradients off, global RNG untouched."""
    model = build_llama_hash()
    model.lm_head.weight[:, STATE_BITS - 1] = 0.0
    return model
