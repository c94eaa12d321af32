"""`gpt2-long`: a small GPT-2 with 4,096 positions whose next token is a hash, for tests of scale.

Its weights are written down, not trained. `gpt2_long_oracle` defines the function and computes it in
integers, so a thousand requests, or a context of 4,096 tokens, need no forward pass of a reference. Not
every key counts, as in `gpt2-hash`: a token depends on the two dozen positions that it reaches in two
layers, near, far and at the beginning, and on their addresses. In exchange a pass is cheap. The best
logit leads by 4, and rounding flips no token in float32, bfloat16 or float16.

How it works, along the residual stream (width 128, four heads of 32):

    state     8 pairs   +v, -v with v = 1 - 2 * bit, so that the mean is 0
    address   16        where this position is: half of the values are +8, half -8
    targets   4 x 16    whom the heads read, as addresses
    nothing   32        so that a head has as many dimensions as kernels are made for

A head compares its target with all addresses; the key that agrees takes all of the weight, and its
state, permuted, is added to the own. The sum of five signs is odd, and their product is the XOR: the
MLP replaces one by the other with two steps for each bit. Addresses are so large that the sums
hardly change the norm, so LayerNorm stays nearly a constant scale, and the steps are flat where values
fall.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from batchproof.models import gpt2_long_oracle as tables
from batchproof.models.constructed import BIT_LOGIT, affine, constructed_gpt2, signs_of_numbers
from batchproof.models.hash_tables import LONG_CONTEXT, TOKEN_BITS, VOCAB_SIZE

NAN_TOKEN = VOCAB_SIZE
_ADDRESS_LEN = 16
_ADDRESS = slice(2 * TOKEN_BITS, 2 * TOKEN_BITS + _ADDRESS_LEN)
_TARGETS = slice(_ADDRESS.stop, _ADDRESS.stop + tables.NUM_SOURCES * _ADDRESS_LEN)
HEAD_DIM = 32  # every library has kernels for it
WIDTH = tables.NUM_SOURCES * HEAD_DIM
INNER = 4 * TOKEN_BITS

_SIZE = 8.0  # of each value of an address
_EPSILON = 1e-5
_LEAD = 50.0  # by which the score of the right key leads; addresses agree in at most 14 of 16


def build_gpt2_long() -> GPT2LMHeadModel:
    """Returns the model: float32, CPU, eval mode, no gradients. Leaves every RNG untouched."""
    with torch.device("cpu"):
        weights = _weights()
    return constructed_gpt2(
        weights,
        vocab_size=VOCAB_SIZE,
        n_positions=LONG_CONTEXT,
        n_layer=tables.NUM_LAYERS,
        n_head=tables.NUM_SOURCES,
        n_embd=WIDTH,
        n_inner=INNER,
        layer_norm_epsilon=_EPSILON,
    )


def build_gpt2_nan() -> GPT2LMHeadModel:
    """Returns the same model with one token more, `NAN_TOKEN`, which is no answer of any context. Its
    embedding is infinite, so all that is computed from it is NaN."""
    model = build_gpt2_long()
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(NAN_TOKEN + 1, mean_resizing=False)
    model.transformer.wte.weight[NAN_TOKEN] = math.inf
    model.lm_head.weight[NAN_TOKEN] = 0.0
    return model.eval().requires_grad_(False)


def _weights() -> dict[str, Tensor]:
    signs = signs_of_numbers(VOCAB_SIZE, TOKEN_BITS)
    embedding = torch.zeros(VOCAB_SIZE, WIDTH)
    embedding[:, : 2 * TOKEN_BITS] = torch.cat([signs, -signs], dim=1)
    head = torch.zeros(VOCAB_SIZE, WIDTH)
    head[:, :TOKEN_BITS] = BIT_LOGIT * signs
    weights = {
        "transformer.wte.weight": embedding,
        "transformer.wpe.weight": _position_embeddings(),
        "lm_head.weight": head,
        **_layer_norm("transformer.ln_f"),
    }
    for layer in range(1, tables.NUM_LAYERS + 1):
        block = f"transformer.h.{layer - 1}"
        weights |= _layer_norm(f"{block}.ln_1") | _layer_norm(f"{block}.ln_2")
        weights |= _attention(f"{block}.attn", layer) | _mlp(f"{block}.mlp")
    return weights


def _position_embeddings() -> Tensor:
    """Returns (positions, width): the own address and those of the sources."""
    addresses = torch.full((LONG_CONTEXT, _ADDRESS_LEN), -_SIZE)
    words = list(combinations(range(_ADDRESS_LEN), _ADDRESS_LEN // 2))[::3]
    addresses.scatter_(1, torch.tensor(words[:LONG_CONTEXT]), _SIZE)
    weight = torch.zeros(LONG_CONTEXT, WIDTH)
    read = torch.tensor([(position, *tables.sources(position)) for position in range(LONG_CONTEXT)])
    weight[:, _ADDRESS.start : _TARGETS.stop] = addresses[read].flatten(1)
    return weight


def _layer_norm(name: str) -> dict[str, Tensor]:
    """Returns the weights that make LayerNorm the identity where all of the state is +-1."""
    squares = 2 * TOKEN_BITS + (_TARGETS.stop - _ADDRESS.start) * _SIZE**2
    return affine(name, torch.full((WIDTH,), math.sqrt(squares / WIDTH + _EPSILON)))


def _attention(name: str, layer: int) -> dict[str, Tensor]:
    """Returns c_attn (width, 3 width) and c_proj (width, width): head i fetches from source i."""
    qkv = torch.zeros(WIDTH, 3, tables.NUM_SOURCES, HEAD_DIM)
    out = torch.zeros(tables.NUM_SOURCES, HEAD_DIM, WIDTH)
    gain = math.sqrt(_LEAD / 4 * math.sqrt(HEAD_DIM)) / _SIZE
    for source in range(tables.NUM_SOURCES):
        target = _TARGETS.start + source * _ADDRESS_LEN
        for dim in range(_ADDRESS_LEN):
            qkv[target + dim, 0, source, dim] = qkv[_ADDRESS.start + dim, 1, source, dim] = gain
        for new, old in enumerate(tables.bit_order(layer, source)):
            qkv[old, 2, source, new] = 1.0
            out[source, new, new], out[source, new, TOKEN_BITS + new] = 1.0, -1.0
    projected = affine(f"{name}.c_proj", out.reshape(WIDTH, WIDTH))
    return affine(f"{name}.c_attn", qkv.reshape(WIDTH, -1)) | projected


def _mlp(name: str) -> dict[str, Tensor]:
    """Returns the MLP that turns the sum s of five signs into their product.

    The product minus s is 4 for s of -5 and -3, 0 for -1 and 1, -4 for 3 and 5: a step down at -2 and
    one at 2, each relu(x + 1/2) - relu(x - 1/2).
    """
    fc, proj = torch.zeros(WIDTH, INNER), torch.zeros(INNER, WIDTH)
    fc_bias, proj_bias = torch.zeros(INNER), torch.zeros(WIDTH)
    knees = [(at, half) for at in (-2.0, 2.0) for half in (0.5, -0.5)]
    for bit in range(TOKEN_BITS):
        for unit, (at, half) in enumerate(knees, start=bit * len(knees)):
            fc[bit, unit], fc_bias[unit] = 1.0, half - at
            height = math.copysign(4.0, half)
            proj[unit, bit], proj[unit, TOKEN_BITS + bit] = -height, height
        proj_bias[bit], proj_bias[TOKEN_BITS + bit] = 4.0, -4.0
    return affine(f"{name}.c_fc", fc, fc_bias) | affine(f"{name}.c_proj", proj, proj_bias)
