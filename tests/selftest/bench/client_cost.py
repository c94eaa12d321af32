"""What the benchmark adds to a step: the client's own time, beside an engine that does nothing.

python -m tests.selftest.bench.client_cost
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from batchproof.api import FinishReason, Request, TokenEvent
from batchproof.bench.drive import serve_stepping
from batchproof.records.provenance import command_line, made_now

NUM_STEPS = 200
ROUNDS = 9
EVENTS = (1, 16, 64, 256)  # of one step


class Idle:
    """Answers every request with a token in each of `NUM_STEPS` steps. The events are made before."""

    def __init__(self, requests: Sequence[Request]) -> None:
        names = [each.request_id for each in requests]
        ends = [TokenEvent(name, 1, FinishReason.LENGTH) for name in names]
        self._steps = [ends, *[[TokenEvent(name, 1) for name in names]] * (NUM_STEPS - 1)]
        self.has_unfinished = True

    def add(self, request: Request) -> None:
        """Does nothing: the requests are known."""

    def abort(self, request_id: str) -> None:
        """Does nothing."""

    def step(self) -> list[TokenEvent]:
        """Returns the next events."""
        events = self._steps.pop()
        self.has_unfinished = bool(self._steps)
        return events


def cost_us(num_events: int) -> float:
    """Returns the microseconds that the client takes for a step of so many events: of the fastest of
    several rounds."""
    requests = [Request(f"r{n}", (1,), NUM_STEPS) for n in range(num_events)]
    rounds = [
        serve_stepping(Idle(requests), requests, torch.device("cpu"), 60.0) for _ in range(ROUNDS)
    ]
    return 1e6 * min(each.wall_s for each in rounds) / NUM_STEPS


def page() -> Iterator[str]:
    """Yields the lines of a page in Markdown."""
    yield "# What the benchmark adds to a step"
    yield ""
    yield from made_now(command_line("python", "-m", "tests.selftest.bench.client_cost")).lines()
    yield ""
    yield "| events of a step | microseconds | of a step of 1 ms |"
    yield "| --- | --- | --- |"
    for num in EVENTS:
        cost = cost_us(num)
        yield f"| {num} | {cost:.1f} | {cost / 1000:.2%} |"


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m tests.selftest.bench.client_cost", description=__doc__
    ).parse_args()
    for line in page():
        print(line, flush=True)
