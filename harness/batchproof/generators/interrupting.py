"""Hypothesis strategies: what is done with an engine between calls, and while requests run."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.sharing import block_prompts, prompts_of_blocks
from batchproof.generators.strategies import workloads
from batchproof.generators.target import Target
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import CLEAR, UPDATE, UPDATE_IN_PART, Interruption, Workload

UPDATES = (UPDATE, UPDATE_IN_PART)


def room_for_adapters(target: Target) -> st.SearchStrategy[int | None]:
    """Draws `max_loras`, though no request names an adapter: layers with room for some are others, and
    take new weights another way."""
    return st.sampled_from([None, 1] if Capability.ADAPTERS in target.capabilities else [None])


@st.composite
def interruptible(draw: st.DrawFn, target: Target) -> Workload:
    """Draws requests that come one by one, of which the first runs for some steps; often with drafts or
    a prefix cache."""
    workload = draw(workloads(target, min_requests=2, with_arrivals=True, first_cap=6))
    assert workload.arrivals is not None, "asked for above"
    can_draft = Capability.SPECULATION in target.capabilities
    drafts = draw(st.sampled_from([None, 3] if can_draft else [None]))
    return replace(
        workload.with_config(
            prefix_caching=draw(st.booleans(), label="prefix_caching"),
            num_speculative_tokens=drafts,
            max_loras=None if drafts else draw(room_for_adapters(target), label="max_loras"),
        ),
        arrivals=(0, *workload.arrivals[1:]),
    )


@st.composite
def standing_still(draw: st.DrawFn, begin: str, end: str) -> tuple[Interruption, ...]:
    """Draws one or two times for which an engine stands still."""
    first = draw(st.integers(1, 6), label=begin)
    last = first + draw(st.integers(1, 4), label=end)
    again = draw(st.sampled_from([(), (last + 2, last + 4)]), label="again")
    steps = (first, last, *again)
    return tuple(Interruption(step, kind) for step, kind in zip(steps, (begin, end) * 2, strict=False))


@st.composite
def new_weights(draw: st.DrawFn, oracle: Oracle, step: int, before: int) -> Interruption:
    """Draws an update, whole or in part, to other weights."""
    others = [each for each in range(oracle.subject.num_weights) if each != before]
    return Interruption(step, draw(st.sampled_from(UPDATES)), draw(st.sampled_from(others)))


@st.composite
def updated(draw: st.DrawFn, oracle: Oracle, workload: Workload) -> Workload:
    """Draws the weights that a workload begins with, and one or two updates meanwhile."""
    numbers = st.integers(0, oracle.subject.num_weights - 1)
    start = draw(st.one_of(st.just(0), numbers), label="weights")  # ends are of the answers under 0
    first = draw(new_weights(oracle, draw(st.integers(1, 6), label="update before step"), start))
    second = draw(new_weights(oracle, first.step + draw(st.integers(0, 2)), first.weights))
    done = (first, second)[: draw(st.integers(1, 2), label="updates")]
    return replace(workload, weights=start, interruptions=done)


@st.composite
def same_prompts(
    draw: st.DrawFn, target: Target, done: Sequence[Interruption], max_loras: int | None = None
) -> tuple[Workload, ...]:
    """Draws prompts that share whole blocks, for an engine with a prefix cache: two calls with them,
    and two more for each interruption, which is done before the first of them."""
    block_size, asked = draw(prompts_of_blocks(target))
    wanted = tuple(Request(f"r{i}", prompt, 3) for i, prompt in enumerate(asked))
    slots = draw(st.integers(1, 3), label="max_num_seqs")
    config = EngineConfig(
        max_num_seqs=slots, block_size=block_size, prefix_caching=True, max_loras=max_loras
    )
    calls, weights = [Workload(wanted, config)] * 2, 0
    for each in done:
        calls.append(Workload(wanted, config, weights=weights, interruptions=(each,)))
        weights = each.weights if each.is_update else weights
        calls.append(Workload(wanted, config, weights=weights))
    return tuple(calls)


@st.composite
def cleared_meanwhile(draw: st.DrawFn, target: Target) -> Workload:
    """Draws requests with one beginning, which come before and behind a clearing, while the first
    runs."""
    block_size = draw(st.sampled_from(target.block_sizes), label="block_size")
    prompt = draw(block_prompts(target.subject.vocab_size, block_size), label="prompt")
    count, step = draw(st.integers(3, 5), label="requests"), draw(st.integers(3, 5), label="cleared")
    wanted = tuple(Request(f"r{i}", (*prompt, i), 9 if i == 0 else 2) for i in range(count))
    arrivals = (0, 1, *(draw(st.integers(step, step + 3)) for _ in wanted[2:]))
    config = EngineConfig(max_num_seqs=count, block_size=block_size, prefix_caching=True)
    return Workload(wanted, config, arrivals, interruptions=(Interruption(step, CLEAR),))
