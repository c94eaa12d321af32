"""`bamba-hash`: an ordinary Bamba whose recurrent state forgets no token, exact in every dtype.

Two of its four layers are Mamba 2, two are attention. Its weights are written down, not trained. A
recurrent state that is lost, foreign, stale, doubled or fed a pad, or a window of the convolution that
is lost between two chunks, changes what follows for good, at once or within a few tokens; so does a key
that the first hard head asks for. Any other wrong key moves the logits by 5 times their float32 error
or more. The best logit leads by at least 3: no rounding flips a token in float32, bfloat16 or float16.
`bamba_hash_oracle` defines the function and computes the same tokens in integer Python.

Bamba, because most hybrid models share its kernels, and because it has an MLP in every layer. Mamba 2
multiplies its state by exp(dt A), which is positive, so the state cannot flip like a parity. But it can
count, and an MLP can take the parity of the count.

How it works, along the residual stream (width 64; a state bit b is one channel v = 1 - 2b):

    state      16   what this position knows, at first its token
    words      16   what a pair of layers has read: numbers, of which only the parity matters
    soft       16   analog sums that move the logits a little, so that small errors show in them
    constant    1   4,096, of which thresholds are made; so large that the rest hardly changes the norm,
                    and RMSNorm is a constant scale

In the terms of Mamba 2, h becomes exp(dt A) h + dt B x, and y is C h + D x. B is one-hot and so chooses
one of the 16 columns of h; C selects the columns to read. x, B and C leave the convolution with one tap
per channel, at ages from 0 to 3. The four heads of a mixer have 16 channels each:

    tally      exp(dt A) is 1, and x counts 0 or 1: y is a number of ones, 255 at most
    constant   dominates the gated norm behind the heads, which is a constant scale for that
    latch      dt is 0 or 32, which either keeps h as it is, or clears it and writes: y is 0 or 1. It
               forgets, so what is wrong in a latch alone may go unseen
    soft       sums of signs, of which a token keeps 0.97

SiLU sees only values where it is 0, or the identity, or, for x, so small that it halves. The tally and
the latch hold small multiples of a power of two, so an engine that keeps h in 16 bits loses nothing.
The first MLP of a pair folds numbers into 0..10 without changing their parity, the second one XORs.
Both are sums of ramps: silu(64 x) / 64 is relu(x) to 1e-8 at every |x| >= 1/4.

Attention has two query heads. The hard one has constant queries and keys, so its score depends on the
distance alone; it fetches the state at the pair's offset, near the start that of position 0. The soft
one takes a mean over all visible keys by content.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import BambaForCausalLM
from transformers.models.bamba.modeling_bamba import BambaAttention, BambaMixer, BambaMLP

from batchproof.models import bamba_hash_oracle as tables
from batchproof.models.constructed import (
    HARD_KEY,
    constructed_rope,
    distance_query,
    fill_vocabulary,
    limit_soft,
    signed_permutation,
    signs,
)
from batchproof.models.hash_tables import NUM_POSITIONS, TOKEN_BITS, VOCAB_SIZE

WIDTH = 64
BITS = tables.STATE_BITS
STATE = slice(0, BITS)
WORDS = slice(BITS, 2 * BITS)
SOFT = slice(2 * BITS, 3 * BITS)
CONSTANT = 3 * BITS
IDENTITY = torch.eye(BITS, dtype=torch.float32, device="cpu")

CONSTANT_VALUE = 4096.0
"""The root mean square is 4096 / sqrt(64) = 512, but for a share of 3e-5 where all words are 256."""
WORD_UNIT = 1 / 32
"""What a one is in `words`. Less than a bit, since counts must not change the norm; normalized it is
2^-5 / 2^9 = 2^-14, the smallest number that is normal in float16."""

HEADS = 4  # of a mixer, each with as many channels as a state has bits
_TALLY, _STEADY, _LATCH, _SOFT_HEAD = (slice(BITS * i, BITS * (i + 1)) for i in range(HEADS))

_CONVOLVED = [WIDTH, tables.COLUMNS, tables.COLUMNS]  # channels of x, B and C

CHUNK_SIZE = 16
"""Positions that a scan computes at once: fewer than most prompts have, and as many as kernels need."""

_STEP = 32.0
"""dt where it is not 0. Softplus is the identity from 20 on, in every library."""
_WRITE = 2.0**-12
"""What x of a one is before SiLU, which makes it 2^-13 but for a share of 2^-13."""
_OPEN = 16.0
"""B and C where they are not 0. The unit of h is 32 * 16 * 2^-13 = 1/16, and of y 1."""
_SHUT = 64.0
"""How far below `_OPEN` a value lies at least that SiLU must make 0: silu(-48) is -7e-20."""
_STEADY_SKIP, _STEADY_GATE = 64.0, 512.0
"""D and the gate of the constant head: with x = 16 its 16 channels are 16 * 64 * 512 = 2^19, the mean
square of all 64 is 2^36, and a unit of y, whose gate is 16, leaves the norm as 16 / 2^18 = 2^-14."""
_SOFT_DECAY_LOG = -7.0
"""A_log of the soft head: a token keeps exp(-32 exp(-7)) = 0.97 of its state."""
_SOFT_STEP = 1 / 32
"""What a unit of y of the soft head adds to its soft channel."""
_NO_DECAY_LOG = -100.0
"""exp(-32 exp(-100)) is 1 in every floating-point format."""

QUERY_HEADS, HEAD_DIM = 2, 32
ROTARY_DIM = HEAD_DIM // 2  # Bamba turns half of a head's dimensions
_AMPLITUDES = {2: (89, 13, 2, 18, 16, 5, 5, 12), 5: (26, 0, 6, 114, 7, 5, 1, 0)}
"""Offset -> amplitude of each RoPE frequency in the hard head's score, whose value at distance x is the
sum of amplitude * cos(frequency * (x - offset)): the solution of a linear program, rounded. For a total
of 160 it has the largest lead of the key at the offset, or of the furthest one if all are nearer, over
all distances below 256 and frequencies rounded to 16 bits: 45 and 20. At distance 0 no score is below
-15: a pad's fully masked row is -65504 + score in float16, and -inf everywhere would make it NaN."""
_MEAN_STEP = 1 / 2
"""What one dimension of the soft query head adds to its soft channel."""
_SOFT_FEEDBACK = 2.0  # gain at which its V reads soft channels


def build_bamba_hash() -> BambaForCausalLM:
    num_layers = 2 * len(tables.OFFSETS)
    return constructed_rope(
        BambaForCausalLM,
        _fill,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=NUM_POSITIONS,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=num_layers,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=1,
        attn_layer_indices=list(range(1, num_layers, 2)),
        mamba_n_heads=HEADS,
        mamba_d_head=BITS,
        mamba_d_state=tables.COLUMNS,
        mamba_d_conv=tables.REACH,
        mamba_expand=HEADS * BITS // WIDTH,
        mamba_chunk_size=CHUNK_SIZE,
        time_step_limit=(0.0, 2 * _STEP),  # no limit, but the default, infinity, is not JSON
    )


def _fill(model: BambaForCausalLM) -> None:
    fill_vocabulary(model, "bamba / head", tables.token_code, slice(0, TOKEN_BITS), SOFT)
    model.model.embed_tokens.weight[:, CONSTANT] = CONSTANT_VALUE
    model.model.final_layernorm.weight.copy_(_norm_weight())
    for layer, block in enumerate(model.model.layers):
        block.input_layernorm.weight.copy_(_norm_weight())
        block.pre_ff_layernorm.weight.copy_(_norm_weight())
        pair, is_second = divmod(layer, 2)
        if is_second:
            _fill_attention(block.self_attn, pair)
            mix_words(block.feed_forward, tables.mixed(pair))
        else:
            _fill_mixer(block.mamba, pair)
            _fill_convolution(block.mamba, pair)
            fold_counts(block.feed_forward)


def _norm_weight() -> Tensor:
    """Returns the weight (width,) of every RMSNorm: behind it a bit is +-1, a word's unit 1, a soft
    channel what it was, and the constant 1."""
    scale = CONSTANT_VALUE / WIDTH**0.5
    weight = torch.full((WIDTH,), scale, dtype=torch.float32, device="cpu")
    weight[WORDS] = scale / WORD_UNIT
    weight[CONSTANT] = scale / CONSTANT_VALUE
    return weight


def _fill_mixer(mixer: BambaMixer, pair: int) -> None:
    """Fill all of a mixer but its convolution, and what enters that."""
    gate, _convolved, dt = mixer.in_proj.weight.split([WIDTH, sum(_CONVOLVED), HEADS])
    gate[:, CONSTANT] = _OPEN
    gate[_STEADY, CONSTANT] = _STEADY_GATE
    mixer.D[1] = _STEADY_SKIP
    # The constant head has no state, as softplus(-100) is 0. The latch has dt = 32 where both bits of
    # the gate are 1, else softplus(-32) or less.
    mixer.dt_bias.copy_(torch.tensor([_STEP, -100.0, -_STEP, _STEP]))
    dt[2, list(tables.gate(pair))] = -_STEP
    mixer.A_log.copy_(torch.tensor([_NO_DECAY_LOG, _NO_DECAY_LOG, 0.0, _SOFT_DECAY_LOG]))
    mixer.norm.weight.fill_(2.0**14)
    for head in (_TALLY, _LATCH):
        mixer.out_proj.weight[WORDS, head] = WORD_UNIT * IDENTITY
    soft = _SOFT_STEP * signed_permutation(f"bamba / pair {pair} / mixer", BITS)
    mixer.out_proj.weight[SOFT, _SOFT_HEAD] = soft


def _fill_convolution(mixer: BambaMixer, pair: int) -> None:
    """Fill x, B and C: what they read of a position, and how many positions later. What they read is 0
    where there is no position, before the start and at a masked pad."""
    x, b, c = mixer.in_proj.weight[WIDTH:-HEADS].split(_CONVOLVED)
    _bias_x, bias_b, bias_c = mixer.conv1d.bias.split(_CONVOLVED)
    by_age = torch.zeros(sum(_CONVOLVED), tables.REACH)
    taps_x, taps_b, taps_c = by_age.split(_CONVOLVED)

    tally, latch = (tables.written(pair, memory) for memory in (tables.TALLY, tables.LATCH))
    for head, sources in ((_TALLY, tally), (_LATCH, latch)):
        for row, (bit, age) in enumerate(sources, start=head.start):
            x[row, bit], x[row, CONSTANT] = -0.5, 0.5  # (1 - v) / 2 is the bit
            taps_x[row, age] = _WRITE
    for row, (bit, age) in enumerate(tally, start=_SOFT_HEAD.start):
        x[row, bit] = 1.0
        taps_x[row, age] = _WRITE
    x[_STEADY, CONSTANT], taps_x[_STEADY, 0] = _OPEN, 1.0

    for column in range(tables.COLUMNS):
        pattern = signs(tuple(column >> i & 1 for i in range(tables.ADDRESS_BITS)))
        b[column, list(tables.address(pair))] = _SHUT / 2 * pattern
    taps_b[:, 1] = 1.0
    bias_b.fill_(_OPEN - tables.ADDRESS_BITS * _SHUT / 2)

    for row, (bit, age) in enumerate(tables.selected(pair)):
        c[row, bit] = -_SHUT
        taps_c[row, age] = 1.0
    bias_c.fill_(_OPEN - _SHUT)
    mixer.conv1d.weight.copy_(by_age.flip(1)[:, None])


def _fill_attention(attention: BambaAttention, pair: int) -> None:
    """Let query head 0 fetch the state of the position at the offset; head 1 is soft. The dimensions
    that RoPE leaves alone hold what the soft head compares."""
    query, key, value = (getattr(attention, f"{name}_proj").weight for name in "qkv")
    offset = tables.OFFSETS[pair]
    amplitudes = enumerate(_AMPLITUDES[offset])
    query[:ROTARY_DIM, CONSTANT] = distance_query(offset, amplitudes, HEAD_DIM, ROTARY_DIM)
    key[: ROTARY_DIM // 2, CONSTANT] = HARD_KEY
    name = f"pair {pair} / attention"
    still, soft_query = slice(ROTARY_DIM, HEAD_DIM), slice(HEAD_DIM + ROTARY_DIM, 2 * HEAD_DIM)
    query[soft_query, STATE] = signed_permutation(f"bamba / {name} / q", BITS)
    key[still, STATE] = signed_permutation(f"bamba / {name} / k", BITS)
    value[:BITS, STATE], value[:BITS, CONSTANT] = -0.5 * IDENTITY, 0.5
    value[still, STATE] = signed_permutation(f"bamba / {name} / v", BITS)
    value[still, SOFT] = _SOFT_FEEDBACK * signed_permutation(f"bamba / {name} / back", BITS)
    attention.o_proj.weight[WORDS, :BITS] = WORD_UNIT * IDENTITY
    attention.o_proj.weight[SOFT, soft_query] = _MEAN_STEP * signed_permutation(
        f"bamba / {name} / o", BITS
    )


_FOLDED = 10
"""Numbers of 0..256 go to and fro between 0 and this. With 10, both MLPs need about as many units."""
_FOLDS = range(_FOLDED, NUM_POSITIONS, _FOLDED)

_GAIN = 64.0
_MIXED_SOFT_STEP = 1 / 64
"""What a one in `words` adds to a soft channel, so that a fraction of a one shows in the logits."""
_LIMITER_UNITS = 3 * BITS
_STEP_UNITS = 2 * (_FOLDED + 2)
"""Per word and bit of a parity: a word of at most 10 + 1 and a bit make 12 steps of two ramps."""
INNER = BITS * _STEP_UNITS + 2 * BITS + _LIMITER_UNITS


def fold_counts(mlp: BambaMLP) -> None:
    """Replace every word by its distance from the nearest multiple of 20, which has the same parity."""
    limit_soft(mlp, 0, SOFT, CONSTANT, 1.0, _GAIN)
    for index, knee in enumerate(_FOLDS):
        first = _LIMITER_UNITS + index * BITS
        units = slice(first, first + BITS)
        mlp.gate_proj.weight[units, WORDS] = _GAIN * IDENTITY
        mlp.gate_proj.weight[units, CONSTANT] = -_GAIN * knee
        mlp.up_proj.weight[units, CONSTANT] = 1.0
        slope = 2.0 if index % 2 else -2.0
        mlp.down_proj.weight[WORDS, units] = slope * WORD_UNIT / _GAIN * IDENTITY


def mix_words(mlp: BambaMLP, mixed_bits: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Replace the state by XORs of state bits with parities of words, and the words by 0.

    The parity of a sum is a step up at 1/2, one down at 3/2 and so on. A step is a ramp between two
    flat parts, which wipe out the rounding of the sum: no error outlives a pair of layers.
    """
    limit_soft(mlp, 0, SOFT, CONSTANT, 1.0, _GAIN)
    gate, up, down = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    unit = _LIMITER_UNITS
    for bit, (own, words) in enumerate(mixed_bits):
        num_steps = len(own) * _STEP_UNITS // 2
        for step in range(num_steps):
            # Seen from the middle, so that no ramp gets high. Up to there steps cancel in pairs.
            side = -1 if step < num_steps // 2 else 1
            for half, slope in ((-0.25, 2.0), (0.25, -2.0)):
                knee = step + 0.5 + side * half
                gate[unit, list(own)] = -side * _GAIN / 2  # (1 - v) / 2 is the bit
                gate[unit, [WORDS.start + word for word in words]] = side * _GAIN
                gate[unit, CONSTANT] = side * _GAIN * (len(own) / 2 - knee)
                up[unit, CONSTANT] = 1.0
                down[bit, unit] = -2.0 * side * slope * (-1) ** step / _GAIN
                unit += 1
    for part, size in ((STATE, 1.0), (WORDS, WORD_UNIT)):
        units = slice(unit, unit + BITS)
        gate[units, CONSTANT] = _GAIN  # always open: the unit is linear
        up[units, part] = IDENTITY
        down[part, units] = -size / _GAIN * IDENTITY
        unit += BITS
    units = slice(unit - BITS, unit)
    down[SOFT, units] = _MIXED_SOFT_STEP / _GAIN * IDENTITY  # bits are in another order in every layer
    # A bit that is 0 is +1: the units that take the old one away add it.
    up[unit - 2 * BITS : unit - 2 * BITS + len(mixed_bits), CONSTANT] = -1.0
