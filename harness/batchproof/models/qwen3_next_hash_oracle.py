"""The answers of `qwen3-next-hash` in integers.

The function: the first state of a position is its token, 8 bits. Layers of memories and layers of
attention take turns. A memory is a table of cells, each of which holds the last state that was written
to it; where a state says so all are cleared, or none is written. Bits of the states of this position
and of the three before it name the cell that is written and the one that is read. In a layer of either
kind a new bit is the XOR of an own bit and of four that are read, which one head in two masks by the
own state. The numbers of ones in two of these sums choose an expert, and that negates some new bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce

from batchproof.models.hash_tables import (
    LONG_CONTEXT,
    NUM_SHARED,
    TOKEN_BITS,
    Step,
    digest,
    flips_of,
    nearest,
    number_of,
    permuted,
    read_on,
    reordered,
    shuffled,
    xor_of,
)

REACH = 4
"""The window of the convolution: this position and the three before it."""
OFFSETS = ((2, 12, 5, 16), (16, 5, 2, 12))
"""How far back each head of each layer of attention reads; near the start position 0."""
ADDRESS_BITS = (3, 5)
"""Of the cells of each of the two key heads."""
MEMORIES = 4  # heads with values, of which each key head serves two
NUM_EXPERTS = 4
MANY = 2  # so many ones in the sums of bits 0 and 1 choose another expert
NUM_LAYERS = 2 * len(OFFSETS)

SERIES = "qwen3-next 106"
"""Of the first 260 series one in which a changed token (93 %), a gate that is ignored (97 %) and cells
that are lost once (93 %) nearly always change the answers that follow."""
flips = partial(flips_of, SERIES, num_shared=NUM_SHARED)


@dataclass(frozen=True, slots=True)
class Address:
    """Bits of the state of `age` positions ago, low bit first, are the number of a cell."""

    bits: tuple[int, ...]
    age: int

    def of(self, states: Sequence[int]) -> int | None:
        """Returns the cell, or None before the start."""
        if self.age >= len(states):
            return None
        state = states[-1 - self.age]
        return number_of(state >> bit & 1 for bit in self.bits)


@cache
def addresses(layer: int, head: int) -> tuple[Address, Address]:
    """Returns how a key head of the layer names the cell that is read, and the one that is written."""
    made = []
    for what in ("read", "written"):
        label = f"{SERIES} / layer {layer} / key {head} / {what}"
        bits = shuffled(f"{label} / bits", TOKEN_BITS)[: ADDRESS_BITS[head]]
        made.append(Address(tuple(bits), digest(f"{label} / age")[0] % REACH))
    return made[0], made[1]


def age(layer: int, memory: int) -> int:
    """Returns how many positions ago the state was current that is written."""
    return shuffled(f"{SERIES} / layer {layer} / ages", REACH)[memory]


@cache
def gates(layer: int, memory: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the two bits of which one must be 1 where a memory is written, and the four that are all
    1 where it is cleared."""
    order = shuffled(f"{SERIES} / layer {layer} / memory {memory} / gates", TOKEN_BITS)
    return tuple(order[:2]), tuple(order[2:6])


@cache
def mask_order(layer: int, head: int) -> tuple[int, ...] | None:
    """Returns, for every bit that the head reads, the own bit that it is masked by; None: by none."""
    label = f"{SERIES} / layer {layer} / head {head} / mask"
    return tuple(shuffled(label, TOKEN_BITS)) if head % 2 else None


@cache
def _masks(layer: int, head: int) -> tuple[int, ...] | None:
    order = mask_order(layer, head)
    return order and permuted(order)


def _reader() -> Step:
    layers = [_Layer(number) for number in range(NUM_LAYERS)]
    return lambda token_id: reduce(lambda state, layer: layer.step(state), layers, token_id)


generate = read_on(_reader, LONG_CONTEXT)


class _Layer:
    """A layer, and what it knows of the positions so far."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._states: list[int] = []
        self._memories: list[dict[int, int]] = [{} for _ in range(MEMORIES)]  # state by cell

    def step(self, state: int) -> int:
        """Returns the new state of the next position, whose old one is `state`."""
        self._states.append(state)
        pair, is_attention = divmod(self._number, 2)
        words = self._attended(pair) if is_attention else self._remembered(state)
        sums = [state]
        for head, word in enumerate(words):
            masks = _masks(self._number, head)
            seen = word if masks is None else word & masks[state]
            sums.append(reordered(SERIES, self._number, head)[seen])
        expert = number_of(sum(each >> bit & 1 for each in sums) >= MANY for bit in (0, 1))
        return xor_of(sums, flips(self._number, expert))

    def _attended(self, pair: int) -> Iterator[int]:
        last = len(self._states) - 1
        return (self._states[nearest(last, offset)] for offset in OFFSETS[pair])

    def _remembered(self, state: int) -> Iterator[int]:
        """Yields what each memory holds in the cell that is read, after this position has written."""
        for memory, cells in enumerate(self._memories):
            read, written = addresses(self._number, memory * len(ADDRESS_BITS) // MEMORIES)
            writes, clears = gates(self._number, memory)
            if all(state >> bit & 1 for bit in clears):
                cells.clear()
            cell, old = written.of(self._states), age(self._number, memory)
            if cell is not None and any(state >> bit & 1 for bit in writes):
                cells[cell] = self._states[-1 - old] if old < len(self._states) else 0
            asked = read.of(self._states)
            yield 0 if asked is None else cells.get(asked, 0)
