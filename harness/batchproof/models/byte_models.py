"""What the constructed models share whose state is a byte, and so at first the token itself.

Their weights are written down, not trained. What each reveals, as docs/hash_models.md says, changes the
next token, and no rounding hides that: in float32, bfloat16 and float16, and with keys and values in 8
bits. The module with `_oracle` in its name defines the function and computes it in integers.

How they work, along the residual stream (a bit b is one channel v = 1 - 2b):

    state      8    what this position knows, at first its token
    constant   1    512, of which thresholds and constant queries and keys are made; so large that the
                    sums below hardly change the norm, which stays nearly a constant scale

Queries and keys are constant, so a score depends on the distance of two positions alone. It peaks at
the head's offset, and the nearest visible key takes all of the weight. The bits of its state are added
to the own, in another order. The sum of an odd number of signs is odd, and their product is the XOR:
the MLP replaces one by the other, with steps that are flat where sums fall.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from batchproof.models.constructed import (
    AMPLITUDES_OF,
    BIT_LOGIT,
    HARD_KEY,
    Amplitudes,
    constructed_rope,
    distance_query,
    signs_of_numbers,
)
from batchproof.models.hash_tables import LONG_CONTEXT, NUM_SHARED, TOKEN_BITS, VOCAB_SIZE, Bits

STATE = slice(0, TOKEN_BITS)
CONSTANT = TOKEN_BITS
SIZE = 512.0  # of the constant
WIDTH, HEAD_DIM, NUM_HEADS, NUM_KV_HEADS = 64, 64, 4, 2
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": LONG_CONTEXT,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
}
ROPE_THETA = 16.0 ** (HEAD_DIM / 24)  # makes frequency j 16 ** (-j / 12), whatever the size of a head
ROUTER_GAIN = 16.0  # the second expert gets exp(-32) of the weight, or less
RELU_GAIN = 32.0  # silu(32 x) / 32 is relu(x) within 0.001 from 0.2 away of the knee on, as gelu is
MOST_SUMMED = 7  # signs
UNITS = 2 * MOST_SUMMED + 1  # of an MLP, for each bit

WINDOW_AMPLITUDES: Amplitudes = AMPLITUDES_OF["window"]
AMPLITUDES: Amplitudes = AMPLITUDES_OF["whole"]


def built(kind: Any, fill: Callable[[Any], None], **sizes: Any) -> Any:
    """Returns the model, as `constructed_rope` does; its sizes are `SIZES` but for those given."""
    return constructed_rope(kind, fill, ROPE_THETA, **{**SIZES, **sizes})


def fill_frame(model: Any, num_summed: Callable[[int], int], added: float = 0.0) -> None:
    """Fills embedding, output head and norms. A sum of that many signs, in a layer, is what the norm
    behind attention scales; the model adds `added` to the weights of its norms."""
    signs = signs_of_numbers(VOCAB_SIZE, TOKEN_BITS)
    embedding = model.model.embed_tokens.weight
    embedding[:, STATE], embedding[:, CONSTANT] = signs, SIZE
    model.lm_head.weight[:, STATE] = BIT_LOGIT * signs
    norms = [(model.model.norm, 1)]
    for layer, block in enumerate(model.model.layers):
        norms += [(block.input_layernorm, 1), (block.post_attention_layernorm, num_summed(layer))]
    for norm, square in norms:
        norm.weight.fill_(norm_scale(square, norm.weight) - added)


def norm_scale(square: int, weight: Tensor) -> float:
    """Returns the weight with which a norm leaves its input as it is, where the square of a channel of
    the state is typically `square`."""
    return math.sqrt((TOKEN_BITS * square + SIZE**2) / len(weight))


def query_at(offset: int, amplitudes: Mapping[int, int]) -> Tensor:
    """Returns the query `(HEAD_DIM,)` for the key so far back."""
    return distance_query(offset, amplitudes.items(), HEAD_DIM, HEAD_DIM, ROPE_THETA)


def fill_attention(
    attention: Any, queries: Sequence[Tensor], order: Callable[[int], Sequence[int]]
) -> None:
    """Lets each head ask its query, and write bit `order(head)[j]` of what it has read to bit j.
    Queries and keys are biases where the projections have some."""
    query, key = (
        (each.weight[:, CONSTANT] if each.bias is None else each.bias).view(-1, HEAD_DIM)
        for each in (attention.q_proj, attention.k_proj)
    )
    unit = SIZE if attention.q_proj.bias is None else 1.0
    key[:, : HEAD_DIM // 2] = HARD_KEY / unit
    fill_values(attention.v_proj.weight.view(NUM_KV_HEADS, HEAD_DIM, -1), 1.0)
    out = attention.o_proj.weight.view(-1, len(queries), HEAD_DIM)
    for head, asked in enumerate(queries):
        query[head] = asked / unit
        out[range(TOKEN_BITS), head, places(head, len(queries), order(head))] = 1.0


def fill_values(value: Tensor, gain: float) -> None:
    """Lets both KV heads of `(2, head_dim, width)` hold the state, the second in reverse."""
    identity = gain * torch.eye(TOKEN_BITS)
    value[:, STATE, STATE] = torch.stack((identity, identity.flip(0)))


def places(head: int, num_heads: int, bits: Iterable[int]) -> list[int]:
    """Returns where bits of the state stand in what a query head reads from its KV head."""
    is_reversed = head * NUM_KV_HEADS // num_heads == 1
    return [TOKEN_BITS - 1 - bit if is_reversed else bit for bit in bits]


def fill_router(weight: Tensor, threshold: float = 0.0) -> None:
    """Lets the signs of the channels 0 and 1, each plus a threshold, choose one of four experts."""
    for expert, row in enumerate(weight):
        for bit in (0, 1):
            gain = -ROUTER_GAIN if expert >> bit & 1 else ROUTER_GAIN
            row[bit] = gain
            row[CONSTANT] += gain * threshold / SIZE


def fill_mlp(mlp: Any, flips: Iterable[tuple[int, int]], shift: int = 0) -> None:
    """Fills an MLP as `fill_parity` does."""
    fill_parity(mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight, flips, shift)


def fill_expert(experts: Any, expert: int, flips: Iterable[tuple[int, int]], shift: int = 0) -> None:
    """Fills an expert as `fill_parity` does."""
    gate, up = experts.gate_up_proj[expert].chunk(2)
    fill_parity(gate, up, experts.down_proj[expert], flips, shift)


def fill_shared_and_routed(mlp: Any, shared: Any, flips: Callable[[int], Bits], shift: int = 0) -> None:
    """Lets a shared expert make the parity of the first channels, and expert n of the others, negated
    where `flips(n)` has no 1: of five signs an MLP makes minus their product."""
    fill_mlp(shared, [(bit, 1) for bit in range(NUM_SHARED)], shift)
    for expert in range(mlp.experts.num_experts):
        routed = [(bit, 1 - flip) for bit, flip in enumerate(flips(expert))]
        fill_expert(mlp.experts, expert, routed[NUM_SHARED:], shift)


def fill_parity(
    gate: Tensor, up: Tensor, down: Tensor, flips: Iterable[tuple[int, int]], shift: int
) -> None:
    """Fills gate, up (both (inner, width)) and down (width, inner).

    For each bit of `flips` they turn the sum s of seven signs, of which the channel lacks `shift`, into
    their product, or minus that for a flipped bit: a constant and a step at each even number, which is
    relu(x + 1/2) - relu(x - 1/2), mirrored for negative ones, so that values stay small. The first unit
    of a bit is linear: it takes the channel away, rounding included. Of five signs they make minus
    their product.
    """
    up[:, CONSTANT] = 1 / SIZE
    gate[-1, CONSTANT] = RELU_GAIN / SIZE
    for number, (bit, is_flipped) in enumerate(flips):
        first, sign = number * UNITS, (-1 if is_flipped else 1) / RELU_GAIN
        gate[first, CONSTANT] = RELU_GAIN / SIZE
        up[first, bit], up[first, CONSTANT] = 1.0, 0.0
        down[bit, first], down[bit, -1] = -1 / RELU_GAIN, -sign
        for index, at in enumerate(range(1 - MOST_SUMMED, MOST_SUMMED, 2)):
            height, side = 2 * sign * (-1) ** index, -1 if at < 0 else 1
            down[bit, -1] += height if at < 0 else 0.0  # of steps on the left, seen from the middle
            for unit, half in enumerate((0.5, -0.5), start=first + 1 + 2 * index):
                gate[unit, bit] = RELU_GAIN * side
                gate[unit, CONSTANT] = RELU_GAIN * (half - abs(at) + side * shift) / SIZE
                down[bit, unit] = 2 * half * height * side
