"""transformers' continuous batching as a server uses it: requests arrive and leave while others run.

Its thread steps by itself. A `step` of this engine is what a client sees: it waits for the next tokens
and takes all there are. Every token then costs the library an object with all tokens so far, so
throughput is measured without stepping.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import sleep
from typing import Any

from transformers import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import GenerationOutput

from batchproof.api import Capability, Completion, FinishReason, Request, TokenEvent, duplicate_id
from batchproof_engines.adapters.transformers_engine import TransformersEngine, finish_reason
from batchproof_engines.adapters.transformers_manager import is_idle, next_output

WAIT_S = 0.001


@dataclass
class _Stream:
    """A live request: its name in the library, and how many of its tokens have been delivered."""

    name: str
    request: Request
    num_delivered: int = 0


class SteppingTransformersEngine(TransformersEngine):
    """Has one pool for everything that may come: `max_num_seqs` sequences of the greatest length."""

    capabilities = TransformersEngine.capabilities | {Capability.STEPPING}
    _streams: dict[str, _Stream]  # by the user's id

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._streams = {}
        self._undelivered: list[TokenEvent] = []  # of requests that ended outside a step
        self._attending = ExitStack()
        self._require_largest_pool()

    @property
    def has_unfinished(self) -> bool:
        return bool(self._streams or self._undelivered)

    def add(self, request: Request) -> None:
        """Queues the request, or schedules its refusal. Raises `ValueError` if its id is live."""
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._limits.refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        with self._closing_on_error():
            manager = self._require_largest_pool()
            if not self._streams:
                self._attending.enter_context(self._working())
            (name,) = self._submit(manager, [request], streaming=True)
        self._streams[request.request_id] = _Stream(name, request)

    def step(self) -> list[TokenEvent]:
        """Returns the events of all outputs so far; waits for one if there is nothing else to deliver.

        Raises `RuntimeError` as `generate` does.
        """
        events, self._undelivered = self._undelivered, []
        with self._closing_on_error():
            while self._streams and (new := self._next_events(waits=not events)) is not None:
                events += new
            self._release_model()
        return events

    def abort(self, request_id: str) -> None:
        """Cancels the request in the library; an unknown id has no effect."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            assert self._pool is not None, "a request is live"
            self._pool.manager.cancel_request(stream.name)
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))
            with self._closing_on_error():
                self._release_model()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As `TransformersEngine.generate`; raises `RuntimeError` while added requests are
        unfinished."""
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        return super().generate(requests)

    def close(self) -> None:
        """Ends the thread, frees the pool and restores the model's attention."""
        super().close()
        self._attending.close()
        self._streams, self._undelivered = {}, []

    def _require_largest_pool(self) -> ContinuousBatchingManager:
        if self._pool is not None:
            return self._pool.manager
        return self._require_pool([self._limits.max_model_len] * self._config.max_num_seqs)

    def _release_model(self) -> None:
        """Restores the model's attention if no request is live, once aborted ones have left the
        model."""
        if not self._streams and self._pool is not None:
            while self._pool.manager.is_running() and not is_idle(self._pool.manager):
                sleep(WAIT_S)
            self._attending.close()

    def _next_events(self, *, waits: bool) -> list[TokenEvent] | None:
        """Returns the events of the next output, or None if there is none yet.

        The output of an aborted request has no events.
        """
        assert self._pool is not None, "a request is live"
        output = next_output(self._pool.manager, waits=waits)
        if output is None:
            return None
        named = (each for each in self._streams.values() if each.name == output.request_id)
        stream = next(named, None)
        return [] if stream is None else self._new_events(stream, output)

    def _new_events(self, stream: _Stream, output: GenerationOutput) -> list[TokenEvent]:
        """Returns an event for each new token; the last one of a request has the finish reason."""
        request_id, tokens = stream.request.request_id, output.generated_tokens
        events = [TokenEvent(request_id, token) for token in tokens[stream.num_delivered :]]
        stream.num_delivered = len(tokens)
        if output.is_finished():
            if not events:
                raise RuntimeError("transformers ended a request without delivering its last token")
            reason = finish_reason(stream.request, tokens)
            events[-1] = events[-1]._replace(finish_reason=reason)
            del self._streams[request_id]
        return events
