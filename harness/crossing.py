"""Hypothesis strategies that bring features together: shared prefixes, preemption, chunks, aborts.

Each of them can be right by itself and wrong beside another: what a preempted request finds of its own
blocks, what an aborted one leaves in the prefix cache when half of its prompt was fed.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from enum import StrEnum
from math import ceil

from hypothesis import strategies as st

from harness.api import Capability, EngineConfig, Request
from harness.oracle import Oracle
from harness.strategies import text_tokens
from harness.workloads import Workload

CONTENTS = (0, 4, 8)  # texts that blocks begin
TAIL = 12  # text of what is less than a block


@st.composite
def block_prompts(
    draw: st.DrawFn, vocab_size: int, block_size: int, max_blocks: int = 4
) -> tuple[int, ...]:
    """Whole blocks with one of three contents each, and a tail of less than one.

    So prompts share beginnings of any number of blocks, hold one block behind different others, are
    each other's permutations, and often end with a block.
    """
    contents = draw(st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=max_blocks))
    tail = text_tokens(TAIL, vocab_size)[: draw(st.integers(0, block_size - 1))]
    blocks = [text_tokens(text, vocab_size)[:block_size] for text in contents]
    return (*(token for block in blocks for token in block), *tail)


@st.composite
def shared_prefixes(
    draw: st.DrawFn, oracle: Oracle, capabilities: AbstractSet[Capability]
) -> tuple[Workload, ...]:
    """Three calls to one engine: some prompts; others, in what may be the same blocks; the first again,
    and one that goes on behind its answer, as a chat does."""
    vocab_size = oracle.subject.vocab_size
    block_size = draw(st.sampled_from([2, 3, 4]), label="block_size")
    some = st.lists(block_prompts(vocab_size, block_size), min_size=1, max_size=2)
    first, others = draw(some, label="first"), draw(some, label="others")
    first += first[: draw(st.integers(0, 1), label="twins")]
    cap = draw(st.integers(1, 2 * block_size), label="max_new_tokens")
    turn = first[0] + oracle.right_tokens(first[0], cap) + text_tokens(TAIL, vocab_size)[:2]
    longest = max(map(len, (*first, *others, turn)))
    needed = ceil((longest + cap) / block_size)
    budgets = [2048]
    num_blocks: list[int | None] = [None]
    if Capability.CHUNKED_PREFILL in capabilities:
        budgets += [3, 5, 8]
    if Capability.PREEMPTION in capabilities:
        num_blocks += range(needed, needed + 5)
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 3)),
        max_num_batched_tokens=draw(st.sampled_from(budgets)),
        block_size=block_size,
        num_blocks=draw(st.sampled_from(num_blocks)),
        return_logits=Capability.LOGITS in capabilities,
        prefix_caching=True,
    )
    calls = {"first": first, "other": others, "again": [*first, turn]}
    return tuple(
        Workload(tuple(Request(f"{name}-{i}", p, cap) for i, p in enumerate(prompts)), config)
        for name, prompts in calls.items()
    )


class Feature(StrEnum):
    """What may meet in one workload."""

    PREEMPTION = "preemption"
    CHUNKS = "chunks"
    PREFIXES = "prefixes"
    ABORTS = "aborts"

    @property
    def capability(self) -> Capability:
        return {
            Feature.PREEMPTION: Capability.PREEMPTION,
            Feature.CHUNKS: Capability.CHUNKED_PREFILL,
            Feature.PREFIXES: Capability.PREFIX_CACHING,
            Feature.ABORTS: Capability.STEPPING,
        }[self]


@st.composite
def crossed(
    draw: st.DrawFn, oracle: Oracle, features: Collection[Feature], has_logits: bool
) -> Workload:
    """Three or four requests, of which the last came later, made so that an engine which is free to do
    each of the features comes to it. Their prompts share two blocks, whether or not they may be shared.
    """
    vocab_size = oracle.subject.vocab_size
    block_size = draw(st.sampled_from([2, 3, 4]), label="block_size")
    shared = text_tokens(CONTENTS[0], vocab_size)[: 2 * block_size]
    lengths = draw(st.lists(st.integers(1, block_size + 1), min_size=3, max_size=4), label="own")
    own = [text_tokens(number + 1, vocab_size)[:length] for number, length in enumerate(lengths)]
    cap = 3 * block_size + 1
    wanted = tuple(Request(f"r{i}", (*shared, *rest), cap) for i, rest in enumerate(own))
    # Some come when the first ones have been computed; all at once, the slots see to that.
    is_stepped = Feature.ABORTS in features
    arrivals = tuple(2 * i for i in range(len(wanted))) if is_stepped else None
    aborts: tuple[tuple[str, int], ...] = ()
    if Feature.ABORTS in features:
        victim = draw(st.integers(0, len(wanted) - 1), label="cancelled")
        after = draw(st.integers(1, 6), label="steps after its arrival")  # its cap is above that
        aborts = ((f"r{victim}", 2 * victim + after),)
    config = EngineConfig(
        max_num_seqs=2,
        max_num_batched_tokens=draw(st.integers(3, 5)) if Feature.CHUNKS in features else 2048,
        block_size=block_size,
        num_blocks=_small_pool(wanted, block_size) if Feature.PREEMPTION in features else None,
        return_logits=has_logits and not is_stepped,
        prefix_caching=Feature.PREFIXES in features,
    )
    return Workload(wanted, config, arrivals, aborts)


def _small_pool(wanted: tuple[Request, ...], block_size: int) -> int:
    """Blocks for one whole life, which two prompts fit into as well, and which two lives outgrow even
    if they share what they can."""
    lives = [len(each.prompt_token_ids) + each.max_new_tokens - 1 for each in wanted]
    prompts = [ceil(len(each.prompt_token_ids) / block_size) for each in wanted]
    num_blocks = max(ceil(max(lives) / block_size), 2 * max(prompts))
    assert 2 * ceil(min(lives) / block_size) - 2 > num_blocks - 1, "else nobody would have to give way"
    return num_blocks
