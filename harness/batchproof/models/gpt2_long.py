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

import math
from itertools import combinations

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention

from batchproof.models import gpt2_long_oracle as tables
from batchproof.models.constructed import BIT_LOGIT, constructed_gpt2, signs_of_numbers
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
    return constructed_gpt2(
        _fill,
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


def _fill(model: GPT2LMHeadModel) -> None:
    stack, signs = model.transformer, signs_of_numbers(VOCAB_SIZE, TOKEN_BITS)
    stack.wte.weight[:, : 2 * TOKEN_BITS] = torch.cat([signs, -signs], dim=1)
    model.lm_head.weight[:, :TOKEN_BITS] = BIT_LOGIT * signs
    _fill_positions(stack.wpe.weight)
    norms = [stack.ln_f]
    for layer, block in enumerate(stack.h):
        norms += [block.ln_1, block.ln_2]
        _fill_attention(block.attn, layer)
        _fill_mlp(block.mlp)
    # LayerNorm is the identity where all of the state is +-1.
    squares = 2 * TOKEN_BITS + (_TARGETS.stop - _ADDRESS.start) * _SIZE**2
    for norm in norms:
        norm.weight.fill_(math.sqrt(squares / WIDTH + _EPSILON))


def _fill_positions(weight: Tensor) -> None:
    """Writes the own address and those of the sources."""
    addresses = torch.full((LONG_CONTEXT, _ADDRESS_LEN), -_SIZE)
    words = list(combinations(range(_ADDRESS_LEN), _ADDRESS_LEN // 2))[::3]
    addresses.scatter_(1, torch.tensor(words[:LONG_CONTEXT]), _SIZE)
    read = torch.tensor([(position, *tables.sources(position)) for position in range(LONG_CONTEXT)])
    weight[:, _ADDRESS.start : _TARGETS.stop] = addresses[read].flatten(1)


def _fill_attention(attention: GPT2Attention, layer: int) -> None:
    """Lets head i fetch from source i."""
    qkv = attention.c_attn.weight.view(WIDTH, 3, tables.NUM_SOURCES, HEAD_DIM)
    out = attention.c_proj.weight.view(tables.NUM_SOURCES, HEAD_DIM, WIDTH)
    gain = math.sqrt(_LEAD / 4 * math.sqrt(HEAD_DIM)) / _SIZE
    for source in range(tables.NUM_SOURCES):
        target = _TARGETS.start + source * _ADDRESS_LEN
        for dim in range(_ADDRESS_LEN):
            qkv[target + dim, 0, source, dim] = qkv[_ADDRESS.start + dim, 1, source, dim] = gain
        for new, old in enumerate(tables.bit_order(layer, source)):
            qkv[old, 2, source, new] = 1.0
            out[source, new, new], out[source, new, TOKEN_BITS + new] = 1.0, -1.0


def _fill_mlp(mlp: GPT2MLP) -> None:
    """Lets the MLP turn the sum s of five signs into their product.

    The product minus s is 4 for s of -5 and -3, 0 for -1 and 1, -4 for 3 and 5: a step down at -2 and
    one at 2, each relu(x + 1/2) - relu(x - 1/2).
    """
    fc, proj = mlp.c_fc, mlp.c_proj
    knees = [(at, half) for at in (-2.0, 2.0) for half in (0.5, -0.5)]
    for bit in range(TOKEN_BITS):
        for unit, (at, half) in enumerate(knees, start=bit * len(knees)):
            fc.weight[bit, unit], fc.bias[unit] = 1.0, half - at
            height = math.copysign(4.0, half)
            proj.weight[unit, bit], proj.weight[unit, TOKEN_BITS + bit] = -height, height
        proj.bias[bit], proj.bias[TOKEN_BITS + bit] = 4.0, -4.0
