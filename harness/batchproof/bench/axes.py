"""The axes of cost growth: their points, and the two calls that a point is made of.

Only `generate` is used, so any engine can be measured. The time of a decode step is the difference of
two calls on prompts of the same lengths whose caps differ by `num_steps`; the work before and after
those steps cancels. The time of a prefill is that of a call with a cap of one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from batchproof.api import EngineConfig, Request

NUM_BATCHED_TOKENS = 2048
POWERS = tuple(2**k for k in range(6, 13))  # 64 to 4096


@dataclass(frozen=True, slots=True)
class GrowthBudget:
    """What one axis may cost in wall-clock time, all engines together."""

    num_laps: int = 3  # at most
    axis_s: float = 15.0  # the last lap begun may exceed it
    call_limit_s: float = 120.0  # a point is left out if a call does not return within it


USUAL_BUDGET = GrowthBudget()


@dataclass(frozen=True, slots=True)
class Point:
    """Two calls that differ in their caps. The time at x is the difference per step; with a `short_cap`
    of 0 there is one call, and its whole time counts."""

    x: int
    num_sequences: int
    prompt_len: int
    short_cap: int
    num_steps: int
    num_slots: int | None = None  # sequences in flight at once; None: all of them

    @property
    def caps(self) -> tuple[int, ...]:
        """The caps of the calls, ascending."""
        return tuple(cap for cap in (self.short_cap, self.short_cap + self.num_steps) if cap)

    @property
    def num_positions(self) -> int:
        """The positions a model must have for the longer call."""
        return self.prompt_len + max(self.caps)

    @property
    def config(self) -> EngineConfig:
        """The limits of the engine that makes the calls."""
        num_slots = self.num_slots or self.num_sequences
        budget = max(NUM_BATCHED_TOKENS, num_slots)
        # An engine that allocates its pool when built can size it, so that no call allocates one.
        return EngineConfig(num_slots, budget, max_model_len=self.num_positions)

    def requests(self, cap: int, lap: str, vocab_size: int) -> tuple[Request, ...]:
        """Returns pseudo-random prompts without EOS. No two calls on an engine share a prefix, so a
        prefix cache does not help."""
        return tuple(
            Request(f"r{index}", _text(f"{lap} {cap} {index}", self.prompt_len, vocab_size), cap)
            for index in range(self.num_sequences)
        )


def decode_point(x: int, num_sequences: int, context: int, num_steps: int) -> Point:
    """Returns a point whose steps have a mean context of `context` tokens, the token being fed not
    counted: within one token, or within one per chunk of the prompts where they exceed the token
    budget.

    With chunks the first sequences decode while the last are still fed. The short call continues until
    all are in flight, so the staggered part is in both calls.
    """
    prompt_len = max(1, context - num_steps // 2)
    num_chunks = ceil(num_sequences * prompt_len / NUM_BATCHED_TOKENS)
    return Point(x, num_sequences, max(1, prompt_len - num_chunks), 1 + num_chunks, num_steps)


@dataclass(frozen=True, slots=True)
class Axis:
    """One quantity that grows while `fixed` ones stay; `one` and `many` are its unit in words."""

    name: str
    unit: str
    one: str
    many: str
    fixed: Mapping[str, int]
    points: tuple[Point, ...]


def sequences_axis(
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64), context: int = 64, num_steps: int = 16
) -> Axis:
    """The time of a step that gives each of x sequences in flight one token."""
    points = [decode_point(n, n, context, num_steps) for n in sizes]
    fixed = {"context": context}
    return Axis("sequences", "s per step", "sequence", "sequences", fixed, tuple(points))


def context_axis(sizes: Sequence[int] = POWERS, num_sequences: int = 2) -> Axis:
    """The time of a step by the context of each sequence. Long contexts get more steps, or the noise of
    the prefill would hide them."""
    points = [decode_point(n, num_sequences, n, min(max(16, n // 32), 64, n)) for n in sizes]
    fixed = {"sequences": num_sequences}
    one, many = "token of context", "tokens of context"
    return Axis("context", "s per step", one, many, fixed, tuple(points))


def prompt_axis(sizes: Sequence[int] = POWERS) -> Axis:
    """The time of one prompt alone, up to its first token."""
    points = [Point(n, 1, n, short_cap=0, num_steps=1) for n in sizes]
    fixed = {"sequences": 1}
    return Axis("prompt", "s per prompt", "prompt token", "prompt tokens", fixed, tuple(points))


def requests_axis(
    sizes: Sequence[int] = (16, 64, 256, 1024), num_slots: int = 16, prompt_len: int = 8, cap: int = 8
) -> Axis:
    """The time of a queue of x requests over a few slots. It grows faster than the queue if waiting or
    finished requests add to the cost of a step."""
    points = [Point(n, n, prompt_len, 0, cap, num_slots) for n in sizes]
    fixed = {"slots": num_slots, "prompt": prompt_len}
    return Axis("requests", "s per token of all", "request", "requests", fixed, tuple(points))


def default_axes() -> tuple[Axis, ...]:
    """Returns the axes that the benchmark sweeps with the tiny shape."""
    return sequences_axis(), context_axis(), prompt_axis(), requests_axis()


def _text(seed: str, length: int, vocab_size: int) -> tuple[int, ...]:
    rng = Random(seed)
    return tuple(rng.randrange(vocab_size) for _ in range(length))
