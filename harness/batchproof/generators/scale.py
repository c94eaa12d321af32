"""Workloads of many, wide and long. Most follow a fixed sweep, because a fault that needs a ninth
sequence, or a context of 1,025 tokens, must be met with certainty and not by luck."""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from functools import cache
from math import ceil

from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload

LONGEST = 4096  # tokens
LONGEST_FORWARD = 256  # tokens, where right answers cost a forward pass


@cache
def _text(vocab_size: int) -> tuple[int, ...]:
    rng = random.Random("scale")
    return tuple(rng.randrange(vocab_size) for _ in range(2 * LONGEST))


def cut_prompt(vocab_size: int, start: int, length: int) -> tuple[int, ...]:
    """Returns `length` <= `LONGEST` tokens; those of different starts begin differently."""
    start %= LONGEST
    return _text(vocab_size)[start : start + length]


def short_requests(vocab_size: int, count: int, first: int, least_cap: int = 1) -> tuple[Request, ...]:
    """Returns requests number `first` and following: prompts of 1 to 13 tokens, caps of `least_cap` and
    one more in turn. For every third request, half of all tokens are an EOS."""
    eos = (frozenset(range(0, vocab_size, 2)), frozenset[int](), frozenset[int]())
    return tuple(
        Request(f"r{n}", cut_prompt(vocab_size, 7 * n, 1 + 5 * n % 13), least_cap + n % 2, eos[n % 3])
        for n in range(first, first + count)
    )


def around(limit: int) -> tuple[int, ...]:
    """Returns the sizes at which a limit shows: one less, itself, one more."""
    return (limit - 1, limit, limit + 1)


def around_powers(least: int, largest: int) -> tuple[int, ...]:
    """Returns the sizes around each power of two that lie in these bounds, ascending."""
    sizes = {size for exponent in range(largest.bit_length()) for size in around(1 << exponent)}
    return tuple(sorted(size for size in sizes if least <= size <= largest))


def longest_context(oracle: Oracle) -> int:
    """Returns how long a context may be: that of the model, unless right answers cost too much."""
    room = min(oracle.subject.context_len, LONGEST)
    return room if oracle.subject.oracle is not None else min(room, LONGEST_FORWARD)


@st.composite
def wide_workloads(
    draw: st.DrawFn, oracle: Oracle, capabilities: AbstractSet[Capability], widest: int
) -> Workload:
    """Draws more requests than slots, of which there are 9 to `widest`: most are short, a few are long.

    Where the engine can, the token budget is below a long prompt, the pool holds half of what all
    need, and requests arrive while others run.
    """
    slots = draw(st.integers(9, widest), label="max_num_seqs")
    longest = longest_context(oracle) // 8
    lengths = st.one_of(*[st.integers(1, 24)] * 7, st.integers(1, longest))
    drawn = draw(st.lists(lengths, min_size=slots + 1, max_size=slots + 9), label="lengths")
    wanted = tuple(
        Request(f"r{i}", cut_prompt(oracle.subject.vocab_size, 13 * i, length), 2 + i % 4)
        for i, length in enumerate(drawn)
    )
    block_size = draw(st.sampled_from([1, 8, 16, 33]), label="block_size")
    needs = [ceil((length + 5) / block_size) for length in drawn]
    is_small = Capability.PREEMPTION in capabilities and draw(st.booleans(), label="small pool")
    in_chunks = Capability.CHUNKED_PREFILL in capabilities and draw(st.booleans(), label="chunks")
    config = EngineConfig(
        max_num_seqs=slots,
        max_num_batched_tokens=draw(st.integers(slots, 300)) if in_chunks else 1 << 16,
        block_size=block_size,
        num_blocks=max(*needs, sum(needs) // 2) if is_small else None,
    )
    arrivals = None
    if Capability.STEPPING in capabilities:
        arrivals = tuple(draw(st.sampled_from([0, 0, 1, 3])) for _ in wanted)
    return Workload(wanted, config, arrivals)
