"""Requests that arrive and leave while others run; each is a stream.

`add` sends a request at once, `step` waits until one of them has a token, and `abort` cuts the
connection, which tells the server that its answer is not wanted any more. The server decides which
requests it batches, so a step of this engine is not a step of the server.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from batchproof.api import Capability, Completion, FinishReason, Request, TokenEvent, duplicate_id
from batchproof_engines.adapters.openai.client import Exchange
from batchproof_engines.adapters.openai.engine import OpenAIEngine
from batchproof_engines.adapters.openai.events import token_events

JOIN_LIMIT_S = 5.0  # for a thread whose connection was cut


@dataclass(eq=False, slots=True)
class _Stream:
    """A live request."""

    request: Request
    exchange: Exchange
    thread: threading.Thread | None = None


class SteppingOpenAIEngine(OpenAIEngine):
    """Streams all added requests at once; `concurrency` applies to `generate` only."""

    capabilities = OpenAIEngine.capabilities | {Capability.STEPPING}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._streams: dict[str, _Stream] = {}
        self._news: SimpleQueue[tuple[_Stream, TokenEvent | Exception]] = SimpleQueue()
        self._undelivered: list[TokenEvent] = []  # of requests that were refused or aborted

    @property
    def has_unfinished(self) -> bool:
        return bool(self._streams or self._undelivered)

    def add(self, request: Request) -> None:
        """Sends the request, or schedules its refusal. Raises `ValueError` if its id is live."""
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._filter.refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        stream = _Stream(request, self._exchange(request))
        stream.thread = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._streams[request.request_id] = stream
        stream.thread.start()

    def step(self) -> list[TokenEvent]:
        """Returns the events received so far; waits if there are none.

        Raises `EngineFailed` after cutting all connections.
        """
        events, self._undelivered = self._undelivered, []
        try:
            while self._streams and (news := self._next(not events)) is not None:
                events += self._delivered(*news)
        except BaseException:
            self._server.on_failure()
            self.close()
            raise
        return events

    def abort(self, request_id: str) -> None:
        """Cuts the request's connection; an unknown id has no effect."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.exchange.cut()
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As `OpenAIEngine.generate`; raises `RuntimeError` while added requests are unfinished."""
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        return super().generate(requests)

    def close(self) -> None:
        """Cuts all connections and waits for their threads."""
        super().close()
        streams, self._streams, self._undelivered = self._streams, {}, []
        for stream in streams.values():
            stream.exchange.cut()
        for stream in streams.values():
            if stream.thread is not None:
                stream.thread.join(JOIN_LIMIT_S)

    def _listen(self, stream: _Stream) -> None:
        """Queues the events of a stream; runs on the stream's own thread."""
        try:
            for event in token_events(stream.request, stream.exchange, self._dialect, at_once=True):
                self._news.put((stream, event))
        except Exception as error:
            self._news.put((stream, error))

    def _next(self, waits: bool) -> tuple[_Stream, TokenEvent | Exception] | None:
        try:
            return self._news.get(block=waits)
        except Empty:
            return None

    def _delivered(self, stream: _Stream, news: TokenEvent | Exception) -> list[TokenEvent]:
        """Returns the event, unless its request was aborted: the id may belong to another by now."""
        request_id = stream.request.request_id
        if self._streams.get(request_id) is not stream:
            return []
        if isinstance(news, Exception):
            raise news
        if news.finish_reason is not None:
            del self._streams[request_id]
        return [news]
