"""Hypothesis strategies: prompts that share prefixes, in one call and from call to call."""

from math import ceil

from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.strategies import text_tokens
from batchproof.generators.target import Target
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
def prompts_of_blocks(draw: st.DrawFn, target: Target) -> tuple[int, list[tuple[int, ...]]]:
    """Draws a block size, and one or two such prompts, each with one token more."""
    block_size = draw(st.sampled_from(target.block_sizes), label="block_size")
    some = st.lists(block_prompts(target.subject.vocab_size, block_size), min_size=1, max_size=2)
    return block_size, [(*prompt, 7) for prompt in draw(some, label="prompts")]


@st.composite
def shared_prefixes(draw: st.DrawFn, target: Target) -> tuple[Workload, ...]:
    """Draws calls to one engine: some prompts; others, possibly of the same blocks, and the first with
    another token; the first again, beside one that continues after its answer. Then two turns of that
    chat, each alone."""
    vocab_size = target.subject.vocab_size
    block_size = draw(st.sampled_from(target.block_sizes), label="block_size")
    some = st.lists(block_prompts(vocab_size, block_size), min_size=1, max_size=2)
    first, others = draw(some, label="first"), draw(some, label="others")
    changed = draw(st.integers(0, len(first[0]) - 1), label="changed")
    token = (first[0][changed] + 1) % vocab_size
    others.append((*first[0][:changed], token, *first[0][changed + 1 :]))
    first += first[: draw(st.integers(0, 1), label="repeated")]
    room = (target.subject.context_len - max(map(len, (*first, *others))) - 4) // 3  # of three turns
    cap = draw(st.integers(1, min(2 * block_size, room)), label="max_new_tokens")
    turn = _next_turn(target.oracle, first[0], cap)
    last = _next_turn(target.oracle, turn, cap)
    calls = {"first": first, "other": others, "again": [*first, turn], "turn": [turn], "last": [last]}
    budgets = [2048]
    num_blocks: list[int | None] = [None]
    if Capability.CHUNKED_PREFILL in target.capabilities:
        budgets += [3, 5, 8]
    if Capability.PREEMPTION in target.capabilities:
        needed = ceil((max(map(len, (*first, *others, last))) + cap) / block_size)
        num_blocks += range(needed, needed + 5)
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 3)),
        max_num_batched_tokens=draw(st.sampled_from(budgets)),
        block_size=block_size,
        num_blocks=draw(st.sampled_from(num_blocks)),
        return_logits=target.has_logits,
        prefix_caching=True,
    )
    return tuple(
        Workload(tuple(Request(f"{name}-{i}", p, cap) for i, p in enumerate(prompts)), config)
        for name, prompts in calls.items()
    )


def _next_turn(oracle: Oracle, prompt: tuple[int, ...], cap: int) -> tuple[int, ...]:
    new = text_tokens(TAIL, oracle.subject.vocab_size)[:2]
    return (*prompt, *oracle.right_tokens(prompt, cap), *new)
