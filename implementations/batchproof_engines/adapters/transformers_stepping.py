"""transformers' continuous batching as a server uses it: requests arrive and leave while others run.

Its thread steps on its own. A `step` of ours is what a client sees: it waits for the next tokens and
takes all that are there. Every token then costs the library an object that holds all tokens so far, so
throughput is timed without this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any

from transformers import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import GenerationOutput

from batchproof.api import (
    Capability,
    Completion,
    FinishReason,
    Request,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.adapters.transformers_engine import TransformersEngine, finish_reason
from batchproof_engines.adapters.transformers_manager import attending, is_idle, next_output

WAIT_S = 0.001


@dataclass
class _Stream:
    """A live request: its name in the library, and how many of its tokens have been told."""

    name: str
    request: Request
    num_told: int = 0


class SteppingTransformersEngine(TransformersEngine):
    """One pool for all that may come: `max_num_seqs` sequences of the greatest length."""

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
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._limits.refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        with self._closing_on_error():
            (name,) = self._submit(self._working_manager(), [request], streaming=True)
        self._streams[request.request_id] = _Stream(name, request)

    def step(self) -> list[TokenEvent]:
        """Waits for a token if nothing else is to be told. Raises `RuntimeError` as `generate` does."""
        events, self._undelivered = self._undelivered, []
        with self._closing_on_error():
            while self._streams and (new := self._next_events(waits=not events)) is not None:
                events += new
            self._rest()
        return events

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            assert self._pool is not None, "somebody is live"
            self._pool.manager.cancel_request(stream.name)
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))
            with self._closing_on_error():
                self._rest()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        return super().generate(requests)

    def close(self) -> None:
        super().close()
        self._attending.close()
        self._streams, self._undelivered = {}, []

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Nothing that was begun is gone on with after what a user has to hear of."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _require_largest_pool(self) -> ContinuousBatchingManager:
        if self._pool is not None:
            return self._pool.manager
        return self._require_pool([self._limits.max_model_len] * self._config.max_num_seqs)

    def _working_manager(self) -> ContinuousBatchingManager:
        manager = self._require_largest_pool()
        if not self._streams:
            self._attending.enter_context(attending(self._model, self._tuning.attention))
        return manager

    def _rest(self) -> None:
        """With nobody live the model is given back; what was cancelled must be out of it before."""
        if not self._streams and self._pool is not None:
            while self._pool.manager.is_running() and not is_idle(self._pool.manager):
                sleep(WAIT_S)
            self._attending.close()

    def _next_events(self, *, waits: bool) -> list[TokenEvent] | None:
        """Of the next output, none of one that was cancelled; None if there is no output yet."""
        assert self._pool is not None, "somebody is live"
        output = next_output(self._pool.manager, waits=waits)
        if output is None:
            return None
        named = (each for each in self._streams.values() if each.name == output.request_id)
        stream = next(named, None)
        return [] if stream is None else self._told(stream, output)

    def _told(self, stream: _Stream, output: GenerationOutput) -> list[TokenEvent]:
        """An event for each token not told yet; the last of a finished request says why it ended."""
        request_id, tokens = stream.request.request_id, output.generated_tokens
        events = [TokenEvent(request_id, token) for token in tokens[stream.num_told :]]
        stream.num_told = len(tokens)
        if output.is_finished():
            if not events:
                raise RuntimeError("transformers ended a request without telling its last token")
            reason = finish_reason(stream.request, tokens)
            events[-1] = events[-1]._replace(finish_reason=reason)
            del self._streams[request_id]
        return events
