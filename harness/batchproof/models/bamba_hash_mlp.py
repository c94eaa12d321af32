"""The two MLPs of `bamba-hash`: one folds counts, the other takes parities.

Both are sums of ramps: silu(64 x) / 64 is relu(x) to 1e-8 at every |x| >= 1/4.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers.models.bamba.modeling_bamba import BambaMLP

from batchproof.models.bamba_hash_stream import (
    BITS,
    CONSTANT,
    IDENTITY,
    SOFT,
    STATE,
    WORD_UNIT,
    WORDS,
)
from batchproof.models.hash_tables import NUM_POSITIONS

_FOLDED = 10
"""Numbers of 0..256 go to and fro between 0 and this. With 10, both MLPs need about as many units."""
_FOLDS = range(_FOLDED, NUM_POSITIONS, _FOLDED)

_GAIN = 64.0
_SOFT_LIMIT, _SOFT_GAIN = 0.2556, 5.0
"""`soft` is limited to about +-0.2556 in each layer, with slope 1 at 0, as silu'(5 * 0.2556) = 1."""
_SOFT_STEP = 1 / 64
"""What a one in `words` adds to a soft channel, so that a fraction of a one shows in the logits."""
_LIMITER_UNITS = 3 * BITS
_STEP_UNITS = 2 * (_FOLDED + 2)
"""Per word and bit of a parity: a word of at most 10 + 1 and a bit make 12 steps of two ramps."""
INNER = BITS * _STEP_UNITS + 2 * BITS + _LIMITER_UNITS


def fold_counts(mlp: BambaMLP) -> None:
    """Replace every word by its distance from the nearest multiple of 20, which has the same parity."""
    _fill_limiter(mlp)
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
    _fill_limiter(mlp)
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
    down[SOFT, units] = _SOFT_STEP / _GAIN * IDENTITY  # bits are in another order in every layer
    # A bit that is 0 is +1: the units that take the old one away add it.
    up[unit - 2 * BITS : unit - 2 * BITS + len(mixed_bits), CONSTANT] = -1.0


def _fill_limiter(mlp: BambaMLP) -> None:
    """Replace every soft channel x by relu(x + limit) - relu(x - limit) - limit, with soft knees."""
    for index, sign in enumerate((1.0, -1.0)):
        units = slice(index * BITS, (index + 1) * BITS)
        mlp.gate_proj.weight[units, SOFT] = _SOFT_GAIN * IDENTITY
        mlp.gate_proj.weight[units, CONSTANT] = _SOFT_GAIN * sign * _SOFT_LIMIT
        mlp.up_proj.weight[units, CONSTANT] = 1.0
        mlp.down_proj.weight[SOFT, units] = sign / _SOFT_GAIN * IDENTITY
    units = slice(2 * BITS, 3 * BITS)
    mlp.gate_proj.weight[units, CONSTANT] = _GAIN
    mlp.up_proj.weight[units, SOFT] = IDENTITY
    mlp.up_proj.weight[units, CONSTANT] = _SOFT_LIMIT
    mlp.down_proj.weight[SOFT, units] = -IDENTITY / _GAIN
