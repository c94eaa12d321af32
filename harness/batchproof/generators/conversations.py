"""Hypothesis strategies: conversations that come and go on one engine, several at once.

What engines keep of a prompt lives on in slots, pools and caches when its request has ended, and is
found again by what the next prompt begins with. So the prompts of a burst are related to those before
it, or to none: a turn behind an answer, a fork at any place, or one token beside a fork before, a
beginning, the same again. Servers that gave the answer to another conversation, by public reports, did
so in bursts of a few requests, behind many that had ended (llama.cpp#27148).
"""

from dataclasses import replace

from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.strategies import text_tokens
from batchproof.generators.target import Target
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload

KINDS = ("new", "turn", "turn", "fork", "fork", "near", "beginning", "again")
LONGEST_NEW, LONGEST = 40, 150  # tokens of a prompt
LARGEST_CAP = 8
MOST_AT_ONCE = 4
NUM_TEXTS = 16


class _Conversations:
    """What was asked and answered so far, as one text each, and where the last fork was."""

    def __init__(self, draw: st.DrawFn, oracle: Oracle, longest: int) -> None:
        self._draw, self._oracle, self._longest = draw, oracle, longest
        self._known: list[tuple[int, ...]] = []
        self._forked = (0, 0)  # which text, and where

    def request(self, name: str) -> Request:
        """Draws the next request, and notes it with its answer."""
        prompt = self._prompt()[: self._longest]
        cap = self._draw(st.sampled_from((1, 1, 2, LARGEST_CAP)))
        self._known.append((*prompt, *self._oracle.right_tokens(prompt, cap)))
        return Request(name, prompt, cap)

    def _prompt(self) -> tuple[int, ...]:
        kind = self._draw(st.sampled_from(KINDS)) if self._known else "new"
        if kind == "new":
            return self._text(LONGEST_NEW)
        which, cut = self._forked
        if kind != "near" or not cut:
            which = self._draw(st.integers(0, len(self._known) - 1))
            cut = self._draw(st.integers(1, len(self._known[which])))
        else:
            cut = max(1, cut + self._draw(st.sampled_from((-1, 1))))
        known = self._known[which]
        if kind == "turn":
            return (*known, *self._text(4))
        if kind == "again":
            return known[:-1] or known
        if kind == "beginning":
            return known[:cut]
        self._forked = which, min(cut, len(known))
        return (*known[:cut], *self._text(LONGEST_NEW))

    def _text(self, longest: int) -> tuple[int, ...]:
        number = self._draw(st.integers(0, NUM_TEXTS - 1))
        length = self._draw(st.integers(1, longest))
        return text_tokens(number, self._oracle.subject.vocab_size)[:length]


@st.composite
def conversations(draw: st.DrawFn, target: Target, num_bursts: int) -> tuple[Workload, ...]:
    """Draws calls to one engine with few slots, a small pool and small steps. In a call up to four
    requests come at once; where there are steps, one may be aborted."""
    capabilities, room = target.capabilities, target.subject.context_len - LARGEST_CAP
    block_size = draw(st.sampled_from(target.block_sizes), label="block_size")
    longest = min(LONGEST, room)
    needed = -(-(longest + LARGEST_CAP) // block_size)
    budgets = [2048, 16, 8] if Capability.CHUNKED_PREFILL in capabilities else [2048]
    is_tight = Capability.PREEMPTION in capabilities
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 3), label="max_num_seqs"),
        max_num_batched_tokens=draw(st.sampled_from(budgets), label="budget"),
        block_size=block_size,
        num_blocks=needed + draw(st.integers(0, needed), label="spare") if is_tight else None,
        prefix_caching=True,
    )
    drawn = _Conversations(draw, target.oracle, longest)
    bursts = []
    for number in range(num_bursts):
        names = [f"{number}-{i}" for i in range(draw(st.integers(2, MOST_AT_ONCE), label="at once"))]
        burst = Workload(tuple(map(drawn.request, names)), config)
        if Capability.STEPPING in capabilities and not draw(st.booleans()):
            place = draw(st.integers(0, len(names) - 1), label="aborted")
            step = draw(st.integers(1, 6), label="at step")
            burst = replace(burst, arrivals=(0,) * len(names), aborts=((names[place], step),))
        bursts.append(burst)
    return tuple(bursts)
