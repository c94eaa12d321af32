"""Hypothesis strategies: requests that name low-rank adapters."""

from dataclasses import replace

from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.generators.sharing import prompts_of_blocks
from batchproof.generators.target import Target
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload

NAMES = ("a", "b", "c", "d")
Adapters = tuple[tuple[str, int], ...]


@st.composite
def loaded_adapters(draw: st.DrawFn, oracle: Oracle, least: int = 1) -> Adapters:
    """Draws names and the numbers of the adapters that they stand for; two may stand for one."""
    count = draw(st.integers(least, len(NAMES)), label="adapters")
    numbers = st.integers(1, oracle.subject.num_variants)
    return tuple((name, draw(numbers, label=name)) for name in NAMES[:count])


@st.composite
def adapted(draw: st.DrawFn, oracle: Oracle, workload: Workload) -> Workload:
    """Draws which adapter each request names, if any, and how many one step may hold. An EOS id becomes
    one of the answer under that adapter."""
    adapters = draw(loaded_adapters(oracle))
    names = st.sampled_from([*dict(adapters), None])
    under = oracle.under(adapters)

    def of_adapter(request: Request) -> Request:
        named = replace(request, adapter=draw(names, label=request.request_id))
        if not request.eos_token_ids:
            return named
        answer = under.choices(named)
        return replace(named, eos_token_ids=frozenset({answer[draw(st.integers(0, len(answer) - 1))]}))

    config = replace(
        workload.config, max_loras=draw(st.sampled_from([len(NAMES), 1, 2]), label="max_loras")
    )
    requests = tuple(map(of_adapter, workload.requests))
    return replace(workload, requests=requests, config=config, adapters=adapters)


@st.composite
def same_prompts_by_turns(draw: st.DrawFn, target: Target, in_place: bool) -> tuple[Workload, ...]:
    """Draws calls to one engine with a prefix cache: a few prompts that share whole blocks, under one
    adapter after the other, then twice without one, as an engine may keep no prefix under adapters, and
    little of what is long ago; then under the first, which in the end stands for other weights, written
    to the same folder if they are loaded `in_place`."""
    block_size, asked = draw(prompts_of_blocks(target))
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 3)),
        block_size=block_size,
        return_logits=target.has_logits,
        prefix_caching=True,
        max_loras=draw(st.sampled_from([len(NAMES), 1]), label="max_loras"),
    )
    adapters = draw(loaded_adapters(target.oracle, least=2))
    (first, number), *others = adapters
    turns = draw(st.permutations([*dict(adapters)]), label="turns")
    other = number % target.subject.num_variants + 1
    calls = [(name, adapters) for name in [*turns, None, None, first, first]]
    calls += [(first, ((first, other), *others)), (first, adapters)]
    return tuple(
        Workload(
            tuple(Request(f"r{i}", prompt, 3, adapter=name) for i, prompt in enumerate(asked)),
            config,
            adapters=loaded,
            adapters_in_place=in_place,
        )
        for name, loaded in calls
    )
