"""Requests that arrive and leave while others run: each is a stream of its own.

`add` sends a request at once, `step` waits until one of them has a token, and `abort` hangs up, which
is how a server learns that an answer is not wanted any more. The server decides who runs beside whom,
so a step of ours is none of its steps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from batchproof.api import (
    Capability,
    Completion,
    FinishReason,
    Request,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.adapters.openai.client import Exchange
from batchproof_engines.adapters.openai.engine import OpenAIEngine
from batchproof_engines.adapters.openai.telling import tell

LEAVE_S = 5.0  # for a thread whose connection was cut


@dataclass(eq=False, slots=True)
class _Stream:
    """A live request."""

    request: Request
    exchange: Exchange
    thread: threading.Thread | None = None
    num_told: int = 0


class SteppingOpenAIEngine(OpenAIEngine):
    """All that was added runs at once: `concurrency` is for `generate`."""

    capabilities = OpenAIEngine.capabilities | {Capability.STEPPING}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._streams: dict[str, _Stream] = {}
        self._news: SimpleQueue[tuple[_Stream, TokenEvent | Exception]] = SimpleQueue()
        self._undelivered: list[TokenEvent] = []  # of requests that were refused or cancelled

    @property
    def has_unfinished(self) -> bool:
        return bool(self._streams or self._undelivered)

    def add(self, request: Request) -> None:
        if request.request_id in self._streams:
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._gate.refusal(request)
        if refusal is not None:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))
            return
        stream = _Stream(request, self._exchange(request))
        stream.thread = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._streams[request.request_id] = stream
        stream.thread.start()

    def step(self) -> list[TokenEvent]:
        """Waits if there is nothing else to tell. Raises `EngineFailed`, and then hangs up on all."""
        events, self._undelivered = self._undelivered, []
        try:
            while self._streams and (news := self._next(waits=not events)) is not None:
                events += self._told(*news)
        except BaseException:
            self._server.on_failure()
            self.close()
            raise
        return events

    def abort(self, request_id: str) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.exchange.cut()
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")
        return super().generate(requests)

    def close(self) -> None:
        super().close()
        streams, self._streams, self._undelivered = self._streams, {}, []
        for stream in streams.values():
            stream.exchange.cut()
        for stream in streams.values():
            if stream.thread is not None:
                stream.thread.join(LEAVE_S)

    def _listen(self, stream: _Stream) -> None:
        """On the stream's own thread."""
        try:
            for event in tell(stream.request, stream.exchange, self._dialect, at_once=True):
                self._news.put((stream, event))
        except Exception as error:
            self._news.put((stream, error))

    def _next(self, *, waits: bool) -> tuple[_Stream, TokenEvent | Exception] | None:
        try:
            return self._news.get(block=waits)
        except Empty:
            return None

    def _told(self, stream: _Stream, news: TokenEvent | Exception) -> list[TokenEvent]:
        """Nothing of one that was cancelled: its id may be somebody else's by now."""
        request_id = stream.request.request_id
        if self._streams.get(request_id) is not stream:
            return []
        if isinstance(news, Exception):
            raise news
        stream.num_told += news.token_id is not None
        if news.finish_reason is not None:
            del self._streams[request_id]
            if news.token_id is None and news.finish_reason is not FinishReason.ERROR:
                news = news._replace(finish_reason=FinishReason.ERROR, error=_early(stream, news))
        return [news]


def _early(stream: _Stream, end: TokenEvent) -> str:
    return (
        f"the server ended the stream with finish_reason {end.finish_reason} after {stream.num_told} "
        f"of {stream.request.max_new_tokens} tokens, and the last is no EOS"
    )
