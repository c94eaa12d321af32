"""What the integer oracles of the constructed models are made of. No torch.

Everything is derived from sha256 of fixed strings, so a model and its oracle, and every platform, see
the same function.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from hashlib import sha256
from operator import xor

VOCAB_SIZE = 256
NUM_POSITIONS = 256
TOKEN_BITS = 8
"""The last `TOKEN_BITS` bits of the last state, high bit first, are the next token's id."""

Bits = tuple[int, ...]

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


def xor_of(words: Iterable[int], flips: Iterable[tuple[int, int]] = ()) -> int:
    """Returns the XOR of the words, in which each bit of the pairs of a bit and 0 or 1 is flipped for a
    1."""
    return reduce(xor, words, sum(is_flipped << bit for bit, is_flipped in flips))


def xor_tokens(
    prompt: Sequence[int],
    count: int,
    num_layers: int,
    fetched: Callable[[int, int], Iterable[tuple[tuple[int, ...], int]]],
    num_positions: int,
) -> list[int]:
    """Returns the tokens that follow where a state is at first its token, and each layer replaces it by
    its XOR with states that it fetches: `fetched(layer, position)` gives the permutation (`permuted`)
    and the position of each. Raises `ValueError` as `greedy_tokens` does."""
    token_ids = list(prompt)

    @cache
    def state(num_done: int, position: int) -> int:
        """Returns the state of `position` after the first layers."""
        if num_done == 0:
            return token_ids[position]
        mixed = state(num_done - 1, position)
        for permutation, source in fetched(num_done - 1, position):
            mixed ^= permutation[state(num_done - 1, source)]
        return mixed

    return greedy_tokens(token_ids, count, lambda last: state(num_layers, last), num_positions)


def counted_tokens(
    prompt: Sequence[int],
    count: int,
    num_layers: int,
    fetched: Callable[[int, int, Bits], Iterable[tuple[tuple[int, ...], int]]],
    flips: Callable[[int, int], Bits],
    num_positions: int,
) -> list[int]:
    """Returns the tokens that follow where a state is at first its token, low bit first, and each layer
    counts ones: of the own bits, and of those that it fetches. `fetched(layer, position, own)` gives
    the order of the bits and the position of each state. New bits are the parities of the counts,
    flipped by `flips(layer, expert)`; whether ones are the majority of bits 0 and 1 numbers the expert.
    Raises `ValueError` as `greedy_tokens` does."""
    token_ids = list(prompt)

    @cache
    def state(num_done: int, position: int) -> Bits:
        """Returns the state of `position` after the first layers."""
        if num_done == 0:
            return tuple(token_ids[position] >> bit & 1 for bit in range(TOKEN_BITS))
        layer = num_done - 1
        summed = [state(layer, position)]
        for order, source in fetched(layer, position, summed[0]):
            read = state(layer, source)
            summed.append(tuple(read[old] for old in order))
        ones = [*map(sum, zip(*summed, strict=True))]
        first, second = (2 * each > len(summed) for each in ones[:2])
        flipped = flips(layer, first + 2 * second)
        return tuple(each & 1 ^ flip for each, flip in zip(ones, flipped, strict=True))

    def next_token(last: int) -> int:
        return sum(value << bit for bit, value in enumerate(state(num_layers, last)))

    return greedy_tokens(token_ids, count, next_token, num_positions)


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
