"""What was under way at a server at once, so that a verdict can say whether its requests met."""

import threading
from collections import Counter
from collections.abc import Mapping

from batchproof_engines.adapters.siblings import SEVERAL

BESIDE, CLOSED, CACHED, ADAPTED, _ = COUNTERS = (
    "answers beside others",
    "connections closed before the end",
    "answers behind cached tokens",
    "answers with an adapter",
    SEVERAL,
)


class Traffic:
    """Counts the exchanges of one engine; it may be told of them by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[object, bool] = {}  # with whether another was, too
        self._counts = Counter[str]()

    @property
    def counts(self) -> dict[str, int]:
        """Returns what was counted so far, by name."""
        with self._lock:
            return {name: self._counts[name] for name in COUNTERS}

    def begin(self, exchange: object) -> None:
        with self._lock:
            self._under_way[exchange] = False
            if len(self._under_way) > 1:
                self._under_way = dict.fromkeys(self._under_way, True)

    def end(
        self, exchange: object, is_whole: bool, is_cached: bool, is_adapted: bool, is_of_several: bool
    ) -> None:
        """Counts an exchange; one that was not answered to its end was closed on this side."""
        with self._lock:
            self._counts[BESIDE] += self._under_way.pop(exchange)
            self._counts[CLOSED] += not is_whole
            self._counts[CACHED] += is_cached
            self._counts[ADAPTED] += is_adapted
            self._counts[SEVERAL] += is_of_several


def has_cached(usage: object, timings: object) -> bool:
    """Returns whether OpenAI's `usage` or llama.cpp's `timings` say that tokens of the prompt were not
    computed for it."""
    details = _field(usage, "prompt_tokens_details")
    return bool(_field(details, "cached_tokens") or _field(timings, "cache_n"))


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None
