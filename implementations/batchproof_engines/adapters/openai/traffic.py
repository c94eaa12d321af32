"""What was under way at a server at once, so that a verdict can say whether its requests met."""

import threading
from collections import Counter

from batchproof_engines.adapters.openai.answer import Answer
from batchproof_engines.adapters.siblings import SEVERAL

BESIDE, CLOSED, CACHED, ADAPTED, _ = COUNTERS = (
    "answers beside others",
    "connections closed before the end",
    "answers behind cached tokens",
    "answers with an adapter",
    SEVERAL,
)


class Traffic:
    """Counts the answers to one engine; it may be told of them by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Answer, bool] = {}  # with whether another was, too
        self._counts = Counter[str]()

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return {name: self._counts[name] for name in COUNTERS}

    def begin(self, answer: Answer) -> None:
        with self._lock:
            self._under_way[answer] = False
            if len(self._under_way) > 1:
                self._under_way = dict.fromkeys(self._under_way, True)

    def end(self, answer: Answer, is_whole: bool) -> None:
        """Counts an answer; one that the server has not sent to its end was closed on this side."""
        is_adapted = answer.request.adapter is not None and answer.parser.finish_reason is not None
        with self._lock:
            self._counts[BESIDE] += self._under_way.pop(answer)
            self._counts[CLOSED] += not is_whole
            self._counts[CACHED] += answer.parser.has_cached
            self._counts[ADAPTED] += is_adapted
            self._counts[SEVERAL] += answer.number is not None
