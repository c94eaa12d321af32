"""One of the `n` answers to a body that several requests share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from batchproof_engines.adapters.openai.client import EngineFailed, Exchange


class SharedExchange:
    """An exchange whose answers have several choices; whoever comes first reads it for all."""

    def __init__(self, exchange: Exchange, is_stream: bool) -> None:
        self.exchange = exchange
        self._is_stream = is_stream
        self._lock = threading.Lock()

    def answers(self) -> list[Any]:
        """Returns the answer, or all events of a stream. Raises as `Exchange.read` does, for each."""
        with self._lock:
            found = self._read
        if isinstance(found, Exception):
            raise found
        return found

    @cached_property
    def _read(self) -> list[Any] | Exception:
        try:
            return [*self.exchange.read_events()] if self._is_stream else [self.exchange.read()]
        except Exception as error:
            return error


class Choice:
    """The part of a shared exchange that is about the answer of one number, as an `Exchange`."""

    def __init__(self, shared: SharedExchange, number: int) -> None:
        self._shared, self._number = shared, number

    def read(self) -> Any:
        return next(self.read_events(), {})

    def read_events(self) -> Iterator[Any]:
        for answer in self._shared.answers():
            part = self._part_of(answer)
            if part is not None:
                yield part

    def failed(self, what: str) -> EngineFailed:
        return self._shared.exchange.failed(f"{what} (choice {self._number})")

    def cut(self) -> None:
        self._shared.exchange.cut()

    def close(self) -> None:
        self._shared.exchange.close()

    def _part_of(self, answer: Any) -> Any:
        """Returns the answer with the choice of this number alone; None if it is about others. The
        tokens that `usage` counts are those of all."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list):
            return answer
        own = [each for each in choices if isinstance(each, dict) and each.get("index") == self._number]
        if choices and not own:
            return None
        usage = answer.get("usage")
        if isinstance(usage, dict):
            usage = {name: value for name, value in usage.items() if name != "completion_tokens"}
        return {**answer, "choices": own, "usage": usage}
