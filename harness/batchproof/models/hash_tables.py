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

Bits = tuple[int, ...]
State = TypeVar("State")

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


def token_of(state: Bits) -> int:
    """Returns the token of a last state: its last bits, high bit first."""
    return int("".join(map(str, state[-TOKEN_BITS:])), base=2)


def permuted(order: Sequence[int]) -> tuple[int, ...]:
    """Returns for every number of `len(order)` bits the one whose bit i is its bit `order[i]`; bit i
    has the value 1 << i."""
    numbers = range(1 << len(order))
    return tuple(sum((number >> old & 1) << new for new, old in enumerate(order)) for number in numbers)


@cache
def bit_order(series: str, layer: int, head: int) -> tuple[int, ...]:
    """Returns, for every bit of a new state of 8, which bit of what the head has read enters it."""
    return tuple(shuffled(f"{series} / layer {layer} / head {head}", TOKEN_BITS))


@cache
def reordered(series: str, layer: int, head: int) -> tuple[int, ...]:
    """Returns what enters a new state of 8 bits, by the state that the head has read."""
    return permuted(bit_order(series, layer, head))


def xor_of(words: Iterable[int], flips: Iterable[tuple[int, int]] = ()) -> int:
    """Returns the XOR of the words, in which each bit of the pairs of a bit and 0 or 1 is flipped for a
    1."""
    return reduce(xor, words, sum(is_flipped << bit for bit, is_flipped in flips))


def layered_tokens(
    prompt: Sequence[int],
    count: int,
    num_layers: int,
    first: Callable[[int], State],
    layer: Callable[[int, int, Callable[[int], State]], State],
    token: Callable[[State], int],
    num_positions: int = NUM_POSITIONS,
) -> list[int]:
    """Returns the tokens that follow where `first` makes the first state of a position of its token,
    `layer(number, position, states)` each next one of the states of all positions before it, and
    `token` the next token of the last. Raises `ValueError` as `greedy_tokens` does."""
    token_ids = list(prompt)

    @cache
    def state(num_done: int, position: int) -> State:
        """Returns the state of `position` after the first layers."""
        if num_done == 0:
            return first(token_ids[position])
        return layer(num_done - 1, position, partial(state, num_done - 1))

    return greedy_tokens(token_ids, count, lambda last: token(state(num_layers, last)), num_positions)


def byte_tokens(
    prompt: Sequence[int],
    count: int,
    num_layers: int,
    fetched: Callable[[int, int, Callable[[int], int]], Iterable[int]],
    flips: Callable[[int, bool, bool], Iterable[tuple[int, int]]] | None = None,
) -> list[int]:
    """Returns the tokens that follow where a state is at first its token, and each layer replaces it by
    its XOR with what is fetched: `fetched(layer, position, states)`. `flips(layer, first, second)` may
    give pairs of a bit and 0 or 1, which flips it: it is told whether ones are the majority of the bits
    0 and 1 of all that enter the XOR. Raises `ValueError` as `greedy_tokens` does."""

    def mixed(layer: int, position: int, states: Callable[[int], int]) -> int:
        summed = [states(position), *fetched(layer, position, states)]
        if flips is None:
            return xor_of(summed)
        first, second = (2 * sum(each >> bit & 1 for each in summed) > len(summed) for bit in (0, 1))
        return xor_of(summed, flips(layer, first, second))

    return layered_tokens(prompt, count, num_layers, _same, mixed, _same, LONG_CONTEXT)


def _same(token_id: int) -> int:
    return token_id


def tokens_read_on(
    prompt: Sequence[int], count: int, read: Callable[[int], int], num_positions: int = NUM_POSITIONS
) -> list[int]:
    """Returns the tokens that follow where `read` takes a sequence token by token, and answers each
    with the next one. Raises `ValueError` as `greedy_tokens` does."""
    token_ids, answers = list(prompt), list[int]()

    def next_token(last: int) -> int:
        answers.extend(map(read, token_ids[len(answers) : last + 1]))
        return answers[-1]

    return greedy_tokens(token_ids, count, next_token, num_positions)


def greedy_tokens(
    token_ids: list[int],
    count: int,
    next_token: Callable[[int], int],
    num_positions: int = NUM_POSITIONS,
) -> list[int]:
    """Appends `count` tokens to `token_ids` and returns them; `next_token` gets the last position.

    Raises `ValueError` for an empty context, one too long for the model, or an unknown token id.
    """
    longest = len(token_ids) + count - 1
    if not token_ids or longest > num_positions:
        raise ValueError(f"context of {longest} tokens; must be 1 to {num_positions}")
    unknown = [token_id for token_id in token_ids if not 0 <= token_id < VOCAB_SIZE]
    if unknown:
        raise ValueError(f"token id {unknown[0]}; must be 0 to {VOCAB_SIZE - 1}")
    for _ in range(count):
        token_ids.append(next_token(len(token_ids) - 1))
    return token_ids[len(token_ids) - count :]
