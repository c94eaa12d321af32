"""What the integer oracles of the constructed models are made of. No torch.

An oracle holds the tables of its function, and the model is built from the same tables; they share
nothing else, so it has no error in common with torch, transformers or any engine. It has no tensors, no
cache, no batch and no rounding. Everything is derived from sha256 of fixed strings, so a model and its
oracle, and every platform, see the same function.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial, reduce
from hashlib import sha256
from operator import xor
from typing import TypeVar

VOCAB_SIZE = 256
NUM_POSITIONS = 256
LONG_CONTEXT = 4096  # positions of the models whose states are bytes
TOKEN_BITS = 8
"""The last `TOKEN_BITS` bits of the last state, high bit first, are the next token's id."""
NUM_SHARED = 4
"""Of the bits of a state so many, the first ones, are made by a shared expert, where there is one, and
the others by the chosen one."""

Bits = tuple[int, ...]
State = TypeVar("State")
Step = Callable[[int], int]
IntegerOracle = Callable[..., list[int]]
"""Takes a prompt and a number of tokens, and the number of a variant where a model has some. Returns so
many tokens that greedy decoding appends to the prompt. Raises `ValueError` for an empty context, one
too long for the model, or an unknown token id."""

_SEED = "batchproof gpt2-hash"


def digest(label: str) -> bytes:
    """Returns 32 bytes fixed by `label`."""
    return sha256(f"{_SEED} / {label}".encode()).digest()


def shuffled(label: str, count: int) -> list[int]:
    """Returns a permutation of range(count) fixed by `label`."""
    return sorted(range(count), key=lambda index: digest(f"{label} / {index}"))


def random_bits(label: str, count: int) -> Bits:
    """Returns `count` <= 256 bits fixed by `label`."""
    word = int.from_bytes(digest(label), "big")
    return tuple(word >> index & 1 for index in range(count))


def number_of(bits: Iterable[int]) -> int:
    """Returns the bits as a number, low bit first."""
    return sum(bit << index for index, bit in enumerate(bits))


def token_of(state: Bits) -> int:
    """Returns the token of a last state: its last bits, high bit first."""
    return number_of(reversed(state[-TOKEN_BITS:]))


def nearest(position: int, offset: int, window: int = LONG_CONTEXT) -> int:
    """Returns the position that a head reads which asks for the one `offset` earlier: of those that it
    sees, so many up to its own as the window has, the one next to that."""
    return position - min(max(offset, 0), position, window - 1)


def permuted(order: Sequence[int]) -> tuple[int, ...]:
    """Returns for every number of `len(order)` bits the one whose bit i is its bit `order[i]`; bit i
    has the value 1 << i."""
    numbers = range(1 << len(order))
    return tuple(number_of(number >> old & 1 for old in order) for number in numbers)


@cache
def bit_order(series: str, layer: int, head: int) -> tuple[int, ...]:
    """Returns, for every bit of a new state of 8, which bit of what the head has read enters it."""
    return tuple(shuffled(f"{series} / layer {layer} / head {head}", TOKEN_BITS))


@cache
def reordered(series: str, layer: int, head: int) -> tuple[int, ...]:
    """Returns what enters a new state of 8 bits, by the state that the head has read."""
    return permuted(bit_order(series, layer, head))


@cache
def flips_of(series: str, layer: int, expert: int, num_shared: int = 0) -> Bits:
    """Returns 1 for each of 8 bits that the expert negates; the first ones are made by a shared expert,
    which negates none."""
    drawn = random_bits(f"{series} / layer {layer} / expert {expert}", TOKEN_BITS - num_shared)
    return (0,) * num_shared + drawn


def xor_of(words: Iterable[int], flips: Bits = ()) -> int:
    """Returns the XOR of the words, and of the number of the bits `flips`."""
    return reduce(xor, words, number_of(flips))


def greedy(begin: Callable[[list[int]], Step], num_positions: int = NUM_POSITIONS) -> IntegerOracle:
    """Returns the oracle of a function. `begin` gets the tokens of a sequence, to which the oracle
    appends, and returns what gives the token behind a position."""

    def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        token_ids = list(prompt)
        longest = len(token_ids) + max_new_tokens - 1
        if not token_ids or longest > num_positions:
            raise ValueError(f"context of {longest} tokens; must be 1 to {num_positions}")
        unknown = [token_id for token_id in token_ids if not 0 <= token_id < VOCAB_SIZE]
        if unknown:
            raise ValueError(f"token id {unknown[0]}; must be 0 to {VOCAB_SIZE - 1}")
        next_token = begin(token_ids)
        for last in range(len(token_ids) - 1, longest):
            token_ids.append(next_token(last))
        return token_ids[len(prompt) :]

    return generate


def read_on(reader: Callable[[], Step], num_positions: int = NUM_POSITIONS) -> IntegerOracle:
    """Returns the oracle of a function that takes a sequence token by token: each time `reader` returns
    a new one, which answers each token with the next."""

    def begin(token_ids: list[int]) -> Step:
        read, answers = reader(), list[int]()

        def next_token(last: int) -> int:
            answers.extend(map(read, token_ids[len(answers) : last + 1]))
            return answers[-1]

        return next_token

    return greedy(begin, num_positions)


def layered(
    num_layers: int,
    first: Callable[[int], State],
    layer: Callable[[int, int, Callable[[int], State]], State],
    token: Callable[[State], int],
    num_positions: int = NUM_POSITIONS,
) -> IntegerOracle:
    """Returns the oracle of a function in which `first` makes the first state of a position of its
    token, `layer(number, position, states)` each next one of the states of all positions before it, and
    `token` the next token of the last."""

    def begin(token_ids: list[int]) -> Step:
        @cache
        def state(num_done: int, position: int) -> State:
            """Returns the state of `position` after the first layers."""
            if num_done == 0:
                return first(token_ids[position])
            return layer(num_done - 1, position, partial(state, num_done - 1))

        return lambda last: token(state(num_layers, last))

    return greedy(begin, num_positions)


def of_bytes(
    num_layers: int,
    order: Callable[[int, int], Sequence[int]],
    reads: Callable[[int, int, Step], Iterable[tuple[int, int]]],
    flips: Callable[[int, int], Bits] | None = None,
) -> IntegerOracle:
    """Returns the oracle of a function in which a state is at first its token, and each layer replaces
    it by its XOR with states that heads read.

    `reads(layer, position, states)` yields heads and the positions that they read, and
    `order(layer, head)` gives what enters by the state that is read. `flips(layer, expert)` may negate
    bits. The number of an expert has bit 0 where ones are the majority of the bits 0 of all that enter
    the XOR, and bit 1 where they are of the bits 1.
    """

    def mixed(layer: int, position: int, states: Step) -> int:
        heads = reads(layer, position, states)
        summed = [states(position), *(order(layer, head)[states(source)] for head, source in heads)]
        if flips is None:
            return xor_of(summed)
        majorities = (2 * sum(each >> bit & 1 for each in summed) > len(summed) for bit in (0, 1))
        return xor_of(summed, flips(layer, number_of(majorities)))

    return layered(num_layers, _same, mixed, _same, LONG_CONTEXT)


def _same(token_id: int) -> int:
    return token_id
