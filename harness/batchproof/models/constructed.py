"""What the constructed models share: how one is made, and weights that are made of bits."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from batchproof.models.hash_tables import TOKEN_BITS, VOCAB_SIZE, Bits, random_bits, shuffled
from batchproof.validation.yaml_nodes import package_yaml

NO_SPECIAL_TOKENS: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
ROPE_THETA = 16.0
"""Frequencies from 1 down to about 1/13 radian per position: what reaches a few dozen positions."""
Amplitudes = Mapping[int, Mapping[int, int]]  # by offset, and by the number of a frequency
AMPLITUDES_OF: Mapping[str, Any] = package_yaml("models/amplitudes.yaml")
HARD_KEY = 8.0
"""Each value of the constant key that `distance_query` is for."""
BIT_LOGIT = 2.0
"""Logit per agreeing bit: the right token has 16, the next best 12."""
SOFT_LOGIT = 0.15
"""Logit per unit of a soft channel, in a model with RoPE."""
_SOFT_LIMIT, _SOFT_GAIN = 0.2556, 5.0
"""`soft` is limited to about +-0.2556 in each layer, with slope 1 at 0, as silu'(5 * 0.2556) = 1.

In a short context the sums are large and the limit keeps the margin; in a long one they are small, so
what a dimension adds can be large, and a single key among 250 still moves the logits well.
"""


def constructed(kind: Any, fill: Callable[[Any], None], **fields: Any) -> Any:
    """Returns a model of the class `kind` whose weights are 0 but for those that `fill` writes.

    It is float32, on the CPU, untied unless `fields`, those of its config, say otherwise, without
    special tokens and gradients, in eval mode. Leaves every RNG untouched.
    """
    config = kind.config_class(**{"tie_word_embeddings": False, **NO_SPECIAL_TOKENS, **fields})
    # The constructor draws initial weights from the global generator.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        model = zeroed(kind(config))
        fill(model)
    return model


def constructed_gpt2(fill: Callable[[Any], None], **sizes: Any) -> GPT2LMHeadModel:
    """Returns a GPT-2 with ReLU, as `constructed` does."""
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    fields = {**off, **sizes, "activation_function": "relu", "dtype": "float32"}
    return constructed(GPT2LMHeadModel, fill, **fields)


def constructed_rope(
    kind: Any, fill: Callable[[Any], None], rope_theta: float = ROPE_THETA, **fields: Any
) -> Any:
    """Returns a model with these frequencies, as `constructed` does."""
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    return constructed(kind, fill, **{"rope_parameters": rope, **fields})


def zeroed(model: Any) -> Any:
    """Returns the model in float32 and eval mode, without gradients, all weights 0."""
    model.float().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    return model


def fill_vocabulary(
    model: Any,
    label: str,
    code: Callable[[int], Bits],
    answer: slice,
    soft: slice,
    soft_logit: float = SOFT_LOGIT,
) -> None:
    """Writes tokens as their codes, from channel 0 on; reads the bits of the next token from the
    channels `answer`, high bit first, and all soft channels, with signs fixed by `label`."""
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    for token_id in range(VOCAB_SIZE):
        state = signs(code(token_id))
        embedding[token_id, : len(state)] = state
        head[token_id, answer] = BIT_LOGIT * token_signs(token_id)
        of_soft = random_bits(f"{label} / {token_id}", soft.stop - soft.start)
        head[token_id, soft] = soft_logit * signs(of_soft)


def limit_soft(mlp: Any, first: int, soft: slice, constant: int, one: float, open_gate: float) -> None:
    """Replaces every soft channel x by relu(x + limit) - relu(x - limit) - limit, with soft knees.

    It takes three units for each channel, from `first` on. `one` times the channel `constant` is 1;
    silu(`open_gate`) is `open_gate`, which makes a unit linear.
    """
    gate, up, down = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    size = soft.stop - soft.start
    identity = torch.eye(size, dtype=torch.float32, device="cpu")
    above, below, linear = (slice(first + i * size, first + (i + 1) * size) for i in range(3))
    for units, sign in ((above, 1.0), (below, -1.0)):
        gate[units, soft] = _SOFT_GAIN * identity
        gate[units, constant] = _SOFT_GAIN * sign * _SOFT_LIMIT * one
        up[units, constant] = one
        down[soft, units] = sign / _SOFT_GAIN * identity
    gate[linear, constant] = open_gate * one
    up[linear, soft] = identity
    up[linear, constant] = _SOFT_LIMIT * one
    down[soft, linear] = -identity / open_gate


def distance_query(
    offset: int,
    amplitudes: Iterable[tuple[int, int]],
    head_dim: int,
    rotary_dim: int,
    rope_theta: float = ROPE_THETA,
) -> Tensor:
    """Returns a query `(rotary_dim,)` for a key of `HARD_KEY` in its first half and 0 in its second:
    the score at distance x is the sum of amplitude * cos(frequency * (x - offset)).

    `amplitudes` are pairs of the number of a frequency and its amplitude. RoPE turns dimensions j and
    j + rotary_dim / 2 of a query at t and of a key at s by frequency[j] times t and s, so the score of
    two vectors at angles p and 0 goes with cos(f * (t - s) + p).
    """
    half = rotary_dim // 2
    query = torch.zeros(rotary_dim, dtype=torch.float32, device="cpu")
    for j, amplitude in amplitudes:
        angle = -offset * rope_theta ** (-j / half)
        length = amplitude * math.sqrt(head_dim) / HARD_KEY
        for dim, part in ((j, math.cos(angle)), (j + half, math.sin(angle))):
            # Rounded to 1/64, far coarser than what two math libraries differ by.
            query[dim] = round(64 * length * part) / 64
    return query


def signs(bits: Iterable[int]) -> Tensor:
    """Returns bits as +1 (for 0) and -1 (for 1): (len(bits),) float32."""
    return 1.0 - 2.0 * torch.tensor([*bits], dtype=torch.float32, device="cpu")


def token_signs(token_id: int) -> Tensor:
    """Returns the bits of a token as signs, high bit first: (TOKEN_BITS,) float32."""
    return signs(map(int, f"{token_id:0{TOKEN_BITS}b}"))


def signs_of_numbers(count: int, num_bits: int) -> Tensor:
    """Returns the bits of 0 to `count` - 1 as +1 (for 0) and -1, low bit first: (count, num_bits)."""
    numbers, places = torch.arange(count, device="cpu"), torch.arange(num_bits, device="cpu")
    return 1.0 - 2.0 * (numbers[:, None] >> places & 1).float()


def signed_permutation(label: str, size: int) -> Tensor:
    """Returns a permutation matrix with random signs, fixed by `label`: (size, size) float32."""
    order = shuffled(f"{label} / order", size)
    identity = torch.eye(size, dtype=torch.float32, device="cpu")
    return signs(random_bits(f"{label} / signs", size))[:, None] * identity[order]
