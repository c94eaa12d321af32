"""Hypothesis strategies that combine features: shared prefixes, preemption, chunks, aborts.

Each can be right alone and wrong beside another: what a preempted request finds of its own blocks, what
an aborted one leaves in the prefix cache when half of its prompt was fed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from math import ceil

from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.strategies import text_tokens
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload

CONTENTS = (0, 4, 8)  # texts whose beginnings fill blocks
TAIL = 12  # text of the part that fills no block


@st.composite
def block_prompts(
    draw: st.DrawFn, vocab_size: int, block_size: int, max_blocks: int = 4
) -> tuple[int, ...]:
    """Draws whole blocks with one of three contents each, and a tail of less than one.

    So prompts share beginnings of any number of blocks, hold one block behind different others, are
    permutations of each other, and often end with a block.
    """
    contents = draw(st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=max_blocks))
    tail = text_tokens(TAIL, vocab_size)[: draw(st.integers(0, block_size - 1))]
    blocks = [text_tokens(text, vocab_size)[:block_size] for text in contents]
    return (*(token for block in blocks for token in block), *tail)


@st.composite
def shared_prefixes(
    draw: st.DrawFn, oracle: Oracle, capabilities: AbstractSet[Capability], least_cap: int = 1
) -> tuple[Workload, ...]:
    """Draws calls to one engine: some prompts; others, possibly of the same blocks; the first again,
    beside one that continues after its answer. Then two turns of that chat, each alone."""
    vocab_size = oracle.subject.vocab_size
    block_size = draw(st.sampled_from([2, 3, 4]), label="block_size")
    some = st.lists(block_prompts(vocab_size, block_size), min_size=1, max_size=2)
    first, others = draw(some, label="first"), draw(some, label="others")
    first += first[: draw(st.integers(0, 1), label="repeated")]
    cap = draw(st.integers(least_cap, 2 * block_size), label="max_new_tokens")
    turn = _next_turn(oracle, first[0], cap)
    last = _next_turn(oracle, turn, cap)
    calls = {"first": first, "other": others, "again": [*first, turn], "turn": [turn], "last": [last]}
    budgets = [2048]
    num_blocks: list[int | None] = [None]
    if Capability.CHUNKED_PREFILL in capabilities:
        budgets += [3, 5, 8]
    if Capability.PREEMPTION in capabilities:
        needed = ceil((max(map(len, (*first, *others, last))) + cap) / block_size)
        num_blocks += range(needed, needed + 5)
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 3)),
        max_num_batched_tokens=draw(st.sampled_from(budgets)),
        block_size=block_size,
        num_blocks=draw(st.sampled_from(num_blocks)),
        return_logits=Capability.LOGITS in capabilities,
        prefix_caching=True,
    )
    return tuple(
        Workload(tuple(Request(f"{name}-{i}", p, cap) for i, p in enumerate(prompts)), config)
        for name, prompts in calls.items()
    )


def _next_turn(oracle: Oracle, prompt: tuple[int, ...], cap: int) -> tuple[int, ...]:
    new = text_tokens(TAIL, oracle.subject.vocab_size)[:2]
    return (*prompt, *oracle.right_tokens(prompt, cap), *new)


class Feature(StrEnum):
    """A feature that can be combined with others in one workload."""

    PREEMPTION = "preemption"
    CHUNKS = "chunks"
    PREFIXES = "prefixes"
    ABORTS = "aborts"


CAPABILITIES = {
    Feature.PREEMPTION: Capability.PREEMPTION,
    Feature.CHUNKS: Capability.CHUNKED_PREFILL,
    Feature.PREFIXES: Capability.PREFIX_CACHING,
    Feature.ABORTS: Capability.STEPPING,
}


def features_of(capabilities: AbstractSet[Capability]) -> list[Feature]:
    """Returns what an engine can be asked for. One without a trace need not show these that a config
    alone asks for."""
    is_shown = Capability.TRACING in capabilities
    asked = () if is_shown else (Feature.PREEMPTION, Feature.PREFIXES)
    return [each for each in Feature if each in asked or CAPABILITIES[each] in capabilities]


@st.composite
def crossed(
    draw: st.DrawFn,
    oracle: Oracle,
    features: Collection[Feature],
    has_logits: bool,
    block_sizes: Sequence[int] = (3, 4),
    growth: int = 3,
    latest: int = 0,
) -> Workload:
    """Draws three requests that share a block, if they may; run twice, an honest engine reaches each of
    the features in any order of admission.

    All three fit the pool when they are admitted, and two of them outgrow it, so one must be preempted
    even if the third is aborted: each grows by `growth` blocks. Every prompt is longer than the budget.
    Requests arrive in one of the steps up to `latest`; 0: at once, unless one of them is aborted.
    """
    vocab_size = oracle.subject.vocab_size
    block_size = draw(st.sampled_from(block_sizes), label="block_size")
    shared = text_tokens(CONTENTS[0], vocab_size)[:block_size]
    own = draw(st.lists(st.integers(1, block_size - 1), min_size=3, max_size=3), label="own tokens")
    prompts = [(*shared, *text_tokens(i + 1, vocab_size)[:length]) for i, length in enumerate(own)]
    wanted = tuple(Request(f"r{i}", each, growth * block_size + 1) for i, each in enumerate(prompts))
    num_blocks = 2 * len(wanted)
    assert growth + 2 <= num_blocks < 2 * (growth + 2) - 1, "one life fits, two that share do not"
    arrivals: tuple[int, ...] | None = None
    aborts: tuple[tuple[str, int], ...] = ()
    if latest:
        arrivals = (0, *draw(st.tuples(*[st.integers(0, latest)] * 2), label="arrivals"))
    if Feature.ABORTS in features:
        arrivals = arrivals or (0, 0, 2)
        victim = draw(st.integers(0, 2), label="cancelled")
        after = draw(st.integers(1, 4), label="steps after its arrival")
        aborts = ((f"r{victim}", arrivals[victim] + after),)
    config = EngineConfig(
        max_num_seqs=3,
        max_num_batched_tokens=draw(st.integers(3, block_size)) if Feature.CHUNKS in features else 2048,
        block_size=block_size,
        num_blocks=num_blocks if Feature.PREEMPTION in features else None,
        return_logits=has_logits and not aborts,
        prefix_caching=Feature.PREFIXES in features,
    )
    return Workload(wanted, config, arrivals, aborts)
