"""An engine with `generate` alone where requests come over time: served in waves.

Whenever it is free it gets what waits, at most a full batch, as from a server with dynamic batching.
All tokens of a wave arrive when its call returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from batchproof.api import Completion, Engine, Request, TokenEvent
from batchproof.checks.answers import check_order
from batchproof.checks.contract_types import checked_completions


class Waves:
    """A `SteppingEngine` whose step is one call of `generate`, on at most `num_slots` requests."""

    def __init__(self, engine: Engine, num_slots: int) -> None:
        self._engine = engine
        self._num_slots = num_slots
        self._waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Lets a request wait for the next wave."""
        self._waiting.append(request)

    def step(self) -> list[TokenEvent]:
        """Serves a wave and returns all of its events, request by request. Raises `BrokenPromise` for
        anything but a completion for each."""
        num = min(len(self._waiting), self._num_slots)
        wave = [self._waiting.popleft() for _ in range(num)]
        completions = checked_completions(self._engine.generate(wave))
        check_order(wave, completions)
        return [event for each in completions for event in _events(each)]

    def abort(self, request_id: str) -> None:
        """Ends a request that waits; the others of a wave cannot be ended."""
        self._waiting = deque(each for each in self._waiting if each.request_id != request_id)

    @property
    def has_unfinished(self) -> bool:
        """Returns whether a request waits."""
        return bool(self._waiting)


def _events(completion: Completion) -> Iterator[TokenEvent]:
    """Yields the events that a stream of this completion would have."""
    request_id, tokens = completion.request_id, completion.token_ids
    yield from (TokenEvent(request_id, token) for token in tokens[:-1])
    last = tokens[-1] if tokens else None
    yield TokenEvent(request_id, last, completion.finish_reason, completion.error)
