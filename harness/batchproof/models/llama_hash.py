"""`llama-hash`: an ordinary Llama whose next token is a hash of the last 64 tokens, in order.

Its weights are written down, not trained. A changed token among the last 64, a key that is lost or
leaks for good, or a decode position one off changes what follows. A single wrong key seen by a
single query moves the logits by at least 100 times their float32 rounding, and flips the token only
if a hard head (below) asks for that key. The best logit leads the second by at least 2.4 (3.8 is
typical), so no rounding flips a token in float32, bfloat16 or float16. `llama_hash_oracle` computes
the same tokens in integer Python. As in every RoPE model only the differences of positions count:
moving a whole sequence to other positions is no fault, and nothing here can see it.

How it works, along the residual stream (width 128; a bit b is one channel v = 1 - 2b, so the norm
is constant and RMSNorm a constant scale; it subtracts no mean, so no pairs are needed):

    state     32   what this position knows, at first its token
    fetched   32   what attention just read; 0 between layers
    soft      32   analog sums, small, see below
    constant   1   8.0, from which thresholds and constant queries and keys are made

Query head 0 is hard: its query and its key are constant, so its score depends on the distance of
two positions alone. It peaks at the layer's offset, and where the context is too short for that,
the nearest visible key wins. That key takes all of the weight; its state goes into `fetched`. The
MLP then XORs `state` with `fetched` into a new state and clears what it used.

Query heads 1, 2 and 3 are soft: one takes nearly the plain mean over all visible keys, two weigh
them by content and distance. They write to `soft`, which moves the logits a little, so that every
visible key, with its K and V in every layer, counts in the logits, also beyond the 64.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from batchproof.decoding.speculation import register_smaller
from batchproof.models.constructed import (
    AMPLITUDES_OF,
    HARD_KEY,
    Amplitudes,
    constructed_rope,
    distance_query,
    fill_vocabulary,
    limit_soft,
    signed_permutation,
    signs,
)
from batchproof.models.hash_tables import NUM_POSITIONS, TOKEN_BITS, VOCAB_SIZE, Bits, random_bits
from batchproof.models.llama_hash_oracle import OFFSETS, STATE_BITS, gate_inputs, token_code

WIDTH, NUM_HEADS, NUM_KV_HEADS = 128, 4, 2
HEAD_DIM = STATE_BITS
INNER = 9 * STATE_BITS

_BITS = STATE_BITS
Gates = Sequence[tuple[int, int]]  # for each new bit, which own and which fetched one it is the XOR of
STATE = slice(0, _BITS)
FETCHED = slice(_BITS, 2 * _BITS)
SOFT = slice(2 * _BITS, 3 * _BITS)
CONSTANT = 3 * _BITS
_IDENTITY = torch.eye(_BITS, dtype=torch.float32, device="cpu")

CONSTANT_VALUE = 8.0
"""64 + 8^2 = 128: with `state` and `fetched` full, the mean square of the stream is exactly 1."""
MEAN_SQUARE_NO_FETCH = (_BITS + CONSTANT_VALUE**2) / WIDTH

_AMPLITUDES: Amplitudes = AMPLITUDES_OF["llama"]
_MEAN_QUERY = 0.1
"""Gives the nearly plain mean scores of about +-0.5, so that its keys count too."""
RELU_GAIN = 32.0
"""silu(32 x) / 32 is relu(x) to 6e-8 at every |x| >= 1/2, the only places where it is used."""
_SOFT_STEP = 3 / 16
"""What one dimension of a soft head adds to its channel, per unit of V."""
_SOFT_FEEDBACK = 2.0
"""Gain at which V reads the soft channels, so that a disturbance of an earlier query travels on."""

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": NUM_POSITIONS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
}
DEEP_LAYERS, DEEP_INNER = 12, 16_384  # of `llama-hash-deep`


def build_llama_hash(**sizes: Any) -> LlamaForCausalLM:
    return build(token_code, OFFSETS, gate_inputs, **sizes)


# Of the dimensions of these heads 32 are used.
build_llama_hash_64 = partial(build_llama_hash, head_dim=64)
build_llama_hash_128 = partial(build_llama_hash, head_dim=128)


def build(
    code: Callable[[int], Bits],
    offsets: Sequence[int],
    inputs: Callable[[int], Gates],
    kind: Any = LlamaForCausalLM,
    **sizes: Any,
) -> Any:
    """Returns the model in which tokens begin as their codes, and layer l replaces a state by the gates
    `inputs(l)` of it and that of the position `offsets[l]` earlier.

    `kind` is a class whose modules are named and compute as those of a Llama, with the fields `sizes`
    in its config; a layer's MLP may be the shared expert of a mixture whose experts stay 0.
    """
    return constructed_rope(
        kind,
        lambda model: _fill(model, code, offsets, inputs),
        **{**SIZES, "num_hidden_layers": len(offsets), **sizes},
    )


def build_llama_twins() -> LlamaForCausalLM:
    """Returns `llama-twins`: `llama-hash` with a ruler.

    Tokens 2k and 2k + 1 are *twins*: the hash names the pair, and an analog sum decides between them.
    The head ignores the last bit of the state, so twins differ in what they read from the soft channels
    alone. These hold small sums over every visible key, so the margin between twins is like that of a
    trained model: any size from 0 to 0.9, evenly spread near 0. Every other pair is behind by at least
    2.4. So one answer shows both, in its tokens alone: another pair is corruption, which no rounding
    explains in any dtype; the other twin is a near-tie, and the largest margin at which an engine takes
    it measures the engine's rounding.
    """
    model = build_llama_hash()
    model.lm_head.weight[:, STATE_BITS - 1] = 0.0
    return model


def build_llama_hash_deep() -> LlamaForCausalLM:
    """Returns `llama-hash-deep`: `llama-hash` at a cost of 300 MB of weights, for benchmarks of
    speculation.

    More layers, and more units in each MLP, write nothing, so it chooses the same tokens and takes much
    longer. Drafts for it are made of `llama-hash`.
    """
    small = build_llama_hash()
    sizes = {"num_hidden_layers": DEEP_LAYERS, "intermediate_size": DEEP_INNER}
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**small.config.to_dict(), **sizes}))
    model.float().eval().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    large = dict(model.named_parameters())
    for name, values in small.named_parameters():
        corner = large[name]
        if corner.shape != values.shape:  # of an MLP
            corner.zero_()
            corner = corner[tuple(slice(size) for size in values.shape)]
        corner.copy_(values)
    register_smaller(model, small)
    return model


def _fill(
    model: Any, code: Callable[[int], Bits], offsets: Sequence[int], inputs: Callable[[int], Gates]
) -> None:
    answer = slice(STATE.stop - TOKEN_BITS, STATE.stop)
    fill_vocabulary(model, "llama / head", code, answer, SOFT)
    model.model.embed_tokens.weight[:, CONSTANT] = CONSTANT_VALUE
    model.model.norm.weight.fill_(math.sqrt(MEAN_SQUARE_NO_FETCH))
    for layer, block in enumerate(model.model.layers):
        block.input_layernorm.weight.fill_(math.sqrt(MEAN_SQUARE_NO_FETCH))
        block.post_attention_layernorm.weight.fill_(1.0)
        fill_hard_head(block.self_attn, offsets[layer], STATE)
        _fill_soft_heads(block.self_attn, layer)
        mlp = getattr(block.mlp, "shared_experts", block.mlp)
        fill_xor(mlp, inputs(layer))
        limit_soft(mlp, 6 * _BITS, SOFT, CONSTANT, 1 / CONSTANT_VALUE, RELU_GAIN)


def fill_hard_head(attention: LlamaAttention, offset: int, part: slice) -> None:
    """Let query head 0 copy `part` of the position `offset` earlier into `fetched`. A larger head has
    the frequencies of one of 32 dimensions among its own."""
    size = attention.head_dim
    amplitudes = ((j * size // HEAD_DIM, each) for j, each in _AMPLITUDES[offset].items())
    query = distance_query(offset, amplitudes, size, size)
    attention.q_proj.weight[:size, CONSTANT] = query / CONSTANT_VALUE
    attention.k_proj.weight[: size // 2, CONSTANT] = HARD_KEY / CONSTANT_VALUE
    attention.v_proj.weight[:_BITS, part] = _IDENTITY
    attention.o_proj.weight[FETCHED, :_BITS] = _IDENTITY


def _fill_soft_heads(attention: LlamaAttention, layer: int) -> None:
    """Let query heads 1 (the nearly plain mean) and 2, 3 (by content) write to `soft`.

    Head 1 shares K and V with the hard head; heads 2 and 3 share K and V made of all state bits. Each
    has its values in its first dimensions, and scores like those of a head of 32.
    """
    name = f"llama / layer {layer} / soft"
    size = attention.head_dim
    gain = math.sqrt(size / HEAD_DIM)
    second, third, fourth = (slice(head * size, head * size + _BITS) for head in range(1, NUM_HEADS))
    mean_query = gain * _MEAN_QUERY * signs(random_bits(f"{name} / mean", HEAD_DIM))
    attention.q_proj.weight[second, CONSTANT] = mean_query / CONSTANT_VALUE
    attention.q_proj.weight[third, STATE] = gain * signed_permutation(f"{name} / q 2", _BITS)
    attention.q_proj.weight[fourth, STATE] = gain * signed_permutation(f"{name} / q 3", _BITS)
    attention.k_proj.weight[second, STATE] = signed_permutation(f"{name} / k", _BITS)
    attention.v_proj.weight[second, STATE] = signed_permutation(f"{name} / v", _BITS)
    attention.v_proj.weight[second, SOFT] = _SOFT_FEEDBACK * signed_permutation(f"{name} / back", _BITS)
    for head in (second, third, fourth):
        step = _SOFT_STEP * signed_permutation(f"{name} / o {head.start}", _BITS)
        attention.o_proj.weight[SOFT, head] = step


def fill_xor(mlp: LlamaMLP, inputs: Gates) -> None:
    """Replace `state` by its XOR with `fetched`, bit by bit as `inputs` says, and `fetched` by 0.

    With u = own + fetched in {-2, 0, 2}, the XOR as +-1 is 2 [r(u) + r(-u)] - 1 for the ramp
    r(x) = relu(x - 1/2) - relu(x - 3/2). The ramp is flat around 0 and 2, so it wipes out the
    rounding of its inputs: no error outlives a layer. Four units a bit, and two that clear.
    """
    gate, up, down = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    own, fetched = (_IDENTITY[list(bits)] for bits in zip(*inputs, strict=True))
    ramp = [(sign, threshold) for sign in (1.0, -1.0) for threshold in (0.5, 1.5)]
    for index, (sign, threshold) in enumerate(ramp):
        units = _units(index)
        gate[units, STATE] = RELU_GAIN * sign * own
        gate[units, FETCHED] = RELU_GAIN * sign * fetched
        gate[units, CONSTANT] = -RELU_GAIN * threshold / CONSTANT_VALUE
        up[units, CONSTANT] = 1 / CONSTANT_VALUE
        down[STATE, units] = (2 if threshold < 1 else -2) / RELU_GAIN * _IDENTITY
    _subtract(mlp, _units(4), STATE, 1.0)
    _subtract(mlp, _units(5), FETCHED, 0.0)


def copy_own_code(attention: LlamaAttention, mlp: LlamaMLP) -> int:
    """Lets a layer of a draft head read the code in the soft channels of the position itself, add it to
    the state, and clear it. Returns the first hidden unit that is left."""
    fill_hard_head(attention, -1, SOFT)
    fill_xor(mlp, [(bit, bit) for bit in range(_BITS)])
    _subtract(mlp, _units(6), SOFT, 0.0)
    return _units(7).start


def _subtract(mlp: LlamaMLP, units: slice, part: slice, constant: float) -> None:
    """Let `units` take x + `constant` away from every channel x of `part`. silu(32) = 32: a gate that
    is always open makes a unit linear."""
    mlp.gate_proj.weight[units, CONSTANT] = RELU_GAIN / CONSTANT_VALUE
    mlp.up_proj.weight[units, part] = _IDENTITY
    mlp.up_proj.weight[units, CONSTANT] = constant / CONSTANT_VALUE
    mlp.down_proj.weight[part, units] = -_IDENTITY / RELU_GAIN


def _units(index: int) -> slice:
    """Returns the `index`-th group of hidden units of the MLP, one unit per bit."""
    return slice(index * _BITS, (index + 1) * _BITS)
