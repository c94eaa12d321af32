"""The answers of `bamba-hash` in integer Python.

The function: a token has a random code of `STATE_BITS` bits, the first state of its position. The
layers come in pairs. The first of a pair keeps two memories of `COLUMNS` columns, a tally and a latch.
At every position it adds a word to one column of the tally by XOR; where its gate is open it clears the
latch, and writes another word to the same column of that. It reads the XOR of some columns of both.
Words, columns, the selection and the gate are bits of the states of this position and of the three
before it. The second layer of a pair fetches the state of an earlier position. Then the state becomes
the XOR of itself, what was read and what was fetched, each under its own permutation; after the last
pair, the XOR of two bits of each is a bit of the next token.

A tally forgets no token, and in which columns a token shows depends on those before it.
"""

from functools import cache

from batchproof.models.hash_tables import (
    TOKEN_BITS,
    Bits,
    Step,
    nearest,
    number_of,
    random_bits,
    read_on,
    shuffled,
    token_of,
)

STATE_BITS = 16
COLUMNS = 16
ADDRESS_BITS = 4
"""So many bits of the previous position's state choose the column of a write: 2^4 = `COLUMNS`."""

REACH = 4
"""What a memory writes and selects comes from this position and the `REACH` - 1 before it: the window
of the convolution."""

OFFSETS = (2, 5)
"""How far back the attention of each pair reads. Near the start it reads position 0."""

TALLY, LATCH = "tally", "latch"

Sources = tuple[tuple[int, int], ...]
"""For every bit of a word, the state bit it copies, and the age of that state in positions."""

_SERIES = "bamba"


@cache
def token_code(token_id: int) -> Bits:
    return random_bits(f"{_SERIES} / token / {token_id}", STATE_BITS)


@cache
def written(pair: int, memory: str) -> Sources:
    """Returns what a memory writes: every state bit once, a quarter of them at each age."""
    return _sources(f"pair {pair} / {memory}")


@cache
def selected(pair: int) -> Sources:
    """Return, for every column, the state bit that selects it for reading, and from how long ago."""
    return _sources(f"pair {pair} / selected")


@cache
def address(pair: int) -> tuple[int, ...]:
    """Returns the bits of the previous position's state that choose the column, low bit first."""
    return tuple(shuffled(f"{_SERIES} / pair {pair} / address", STATE_BITS)[:ADDRESS_BITS])


@cache
def gate(pair: int) -> tuple[int, int]:
    """Returns the two state bits that, both 1, open the gate of the latch."""
    first, second, *_ = shuffled(f"{_SERIES} / pair {pair} / gate", STATE_BITS)
    return first, second


@cache
def mixed(pair: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return, for every new state bit, the own bits and the bits read that it is the XOR of.

    One of each; after the last pair, where only the bits of a token remain, two of each, so that no bit
    of a memory goes unused.
    """
    own = shuffled(f"{_SERIES} / pair {pair} / own", STATE_BITS)
    read = shuffled(f"{_SERIES} / pair {pair} / read", STATE_BITS)
    step = 1 if pair < len(OFFSETS) - 1 else STATE_BITS // TOKEN_BITS
    starts = range(0, STATE_BITS, step)
    return tuple((tuple(own[i : i + step]), tuple(read[i : i + step])) for i in starts)


def _reader() -> Step:
    pairs = [_Pair(pair) for pair in range(len(OFFSETS))]

    def read(token_id: int) -> int:
        state = token_code(token_id)
        for pair in pairs:
            state = pair.step(state)
        return token_of(state)

    return read


class _Pair:
    """Two layers, and what they know of the positions so far."""

    def __init__(self, pair: int) -> None:
        self._pair = pair
        self._states: list[Bits] = []
        self._memories = {TALLY: [0] * COLUMNS, LATCH: [0] * COLUMNS}  # words as integers

    def step(self, state: Bits) -> Bits:
        """Returns the new state of the next position, whose old one is `state`."""
        self._states.append(state)
        self._write(state)
        word = 0
        for column, is_selected in enumerate(self._looked_up(selected(self._pair))):
            if is_selected:
                word ^= self._memories[TALLY][column] ^ self._memories[LATCH][column]
        fetched = self._states[nearest(len(self._states) - 1, OFFSETS[self._pair])]
        word ^= number_of(fetched)
        return tuple(
            sum([*(state[i] for i in own), *(word >> i for i in read)]) & 1
            for own, read in mixed(self._pair)
        )

    def _write(self, state: Bits) -> None:
        is_open = all(state[bit] for bit in gate(self._pair))
        if is_open:
            self._memories[LATCH] = [0] * COLUMNS
        if len(self._states) == 1:
            return  # no previous position, no column
        column = number_of([self._states[-2][bit] for bit in address(self._pair)])
        for memory, is_written in ((TALLY, True), (LATCH, is_open)):
            if is_written:
                word = number_of(self._looked_up(written(self._pair, memory)))
                self._memories[memory][column] ^= word

    def _looked_up(self, sources: Sources) -> list[int]:
        """Returns bits of the last states; before the start they are 0."""
        states = self._states
        return [states[-1 - age][bit] if age < len(states) else 0 for bit, age in sources]


def _sources(label: str) -> Sources:
    order = shuffled(f"{_SERIES} / {label} / bits", STATE_BITS)
    ages = shuffled(f"{_SERIES} / {label} / ages", STATE_BITS)
    return tuple((bit, age % REACH) for bit, age in zip(order, ages, strict=True))


generate = read_on(_reader)
