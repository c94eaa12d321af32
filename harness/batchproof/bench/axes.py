"""What growth is measured over: the points of each axis, and the two calls that a point is made of.

Any engine can be measured, for only `generate` is used. The time of a decode step is the difference of
two calls on prompts of the same lengths, whose caps differ by `num_steps`: what comes before the first
and after the last of those steps is in both calls and cancels. The time of a prefill is that of a call
with a cap of one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

from batchproof.api import EngineConfig, Request

NUM_BATCHED_TOKENS = 2048
POWERS = tuple(2**k for k in range(6, 13))  # 64 to 4096


@dataclass(frozen=True, slots=True)
class Point:
    """Two calls that differ in their caps; what `num_steps` steps cost more, or the whole of the longer
    call where the shorter has a cap of 0, is the time at x."""

    x: int
    num_sequences: int
    prompt_len: int
    short_cap: int
    num_steps: int
    num_slots: int | None = None  # sequences in flight at once; None: all of them

    @property
    def caps(self) -> tuple[int, ...]:
        """Of the calls it takes."""
        return tuple(cap for cap in (self.short_cap, self.short_cap + self.num_steps) if cap)

    @property
    def num_positions(self) -> int:
        """What a model must have for it."""
        return self.prompt_len + max(self.caps)

    @property
    def config(self) -> EngineConfig:
        num_slots = self.num_slots or self.num_sequences
        budget = max(NUM_BATCHED_TOKENS, num_slots)
        # An engine that makes its pool when it is built learns how large: in no call is one made.
        return EngineConfig(num_slots, budget, max_model_len=self.num_positions)

    def requests(self, cap: int, lap: str, vocab_size: int) -> tuple[Request, ...]:
        """Pseudo-random prompts without EOS. No two calls on an engine share a prefix, so there is none
        that it could have kept."""
        return tuple(
            Request(f"r{index}", _text(f"{lap} {cap} {index}", self.prompt_len, vocab_size), cap)
            for index in range(self.num_sequences)
        )


def decode_point(x: int, num_sequences: int, context: int, num_steps: int) -> Point:
    """Steps whose mean context is `context` tokens, the one being fed not counted; within one token, or
    one for each chunk of the prompts where they do not fit the token budget.

    Then the first sequences decode while the last are still fed. The short call goes on until all are
    in flight: what is staggered is in both calls.
    """
    prompt_len = max(1, context - num_steps // 2)
    num_chunks = ceil(num_sequences * prompt_len / NUM_BATCHED_TOKENS)
    return Point(x, num_sequences, max(1, prompt_len - num_chunks), 1 + num_chunks, num_steps)


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that grows while the rest is `fixed`; `one` and `many` name it in words."""

    name: str
    unit: str
    one: str
    many: str
    fixed: tuple[tuple[str, int], ...]
    points: tuple[Point, ...]

    def header(self) -> dict[str, Any]:
        """The first fields of its entry in a result file."""
        return {"axis": self.name, "unit": self.unit, "fixed": dict(self.fixed)}


def sequences_axis(
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64), context: int = 64, num_steps: int = 16
) -> Axis:
    """Time of a step that gives each of x sequences in flight one token."""
    points = [decode_point(n, n, context, num_steps) for n in sizes]
    fixed = (("context", context),)
    return Axis("sequences", "s per step", "sequence", "sequences", fixed, tuple(points))


def context_axis(sizes: Sequence[int] = POWERS, num_sequences: int = 2) -> Axis:
    """Time of a step by the context of each sequence. More steps where it is long, or the noise of the
    prefill would hide them."""
    points = [decode_point(n, num_sequences, n, min(max(16, n // 32), 64, n)) for n in sizes]
    fixed = (("sequences", num_sequences),)
    one, many = "token of context", "tokens of context"
    return Axis("context", "s per step", one, many, fixed, tuple(points))


def prompt_axis(sizes: Sequence[int] = POWERS) -> Axis:
    """Time of one prompt alone, up to its first token."""
    points = [Point(n, 1, n, short_cap=0, num_steps=1) for n in sizes]
    fixed = (("sequences", 1),)
    return Axis("prompt", "s per prompt", "prompt token", "prompt tokens", fixed, tuple(points))


def requests_axis(
    sizes: Sequence[int] = (16, 64, 256, 1024), num_slots: int = 16, prompt_len: int = 8, cap: int = 8
) -> Axis:
    """Time of a queue of x requests over a few slots. An engine whose steps cost more for those that
    wait, or are finished, grows faster than the queue."""
    points = [Point(n, n, prompt_len, 0, cap, num_slots) for n in sizes]
    fixed = (("slots", num_slots), ("prompt", prompt_len))
    return Axis("requests", "s per token of all", "request", "requests", fixed, tuple(points))


def default_axes() -> tuple[Axis, ...]:
    """What the benchmark sweeps with the tiny shape."""
    return sequences_axis(), context_axis(), prompt_axis(), requests_axis()


def _text(seed: str, length: int, vocab_size: int) -> tuple[int, ...]:
    rng = Random(seed)
    return tuple(rng.randrange(vocab_size) for _ in range(length))
