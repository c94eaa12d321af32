"""Requests that begin in a saved state: the slots of llama.cpp's server, written to disk and read back.

Operators keep conversations so. A state is read into whichever slot is free, and may be another
prompt's: what the new one does not share with it must be computed.
"""

import threading
from collections import Counter, deque
from itertools import takewhile
from typing import Any

from batchproof.errors import UsageError
from batchproof_engines.adapters.openai.client import EngineFailed, Exchange, Refused, Server

NUM_KEPT = 16  # states; the oldest is overwritten
WAIT_S = 0.1  # for a free slot, before it is seen whether the connection was cut
RESTORED, SAVED = COUNTERS = "states restored from disk", "states saved to disk"


class SavedSlots:
    """The slots of a server. Raises `UsageError` if it says nothing of them."""

    def __init__(self, server: Server) -> None:
        self._server = server.at_root()
        try:
            self._free = deque(range(self._server.ask("GET", "/props")["total_slots"]))
        except (EngineFailed, Refused, TypeError, KeyError):
            raise UsageError(
                f"restored is true, which needs llama.cpp's server: {self._server.base_url}/props says "
                "no total_slots"
            ) from None
        self._has_free = threading.Condition()
        self._disk = threading.Lock()  # no file is overwritten while it is read
        self._prompts: dict[str, list[int]] = {}  # of the saved states, the oldest first
        self._counts = Counter[str]()

    @property
    def counts(self) -> dict[str, int]:
        return {name: self._counts[name] for name in (SAVED, RESTORED)}

    def begin(self, exchange: Exchange, body: dict[str, Any]) -> dict[str, Any]:
        """Waits for a free slot, restores there the state that shares most with the prompt, and returns
        the field that asks for the slot. Its state is saved when the exchange is closed."""
        with self._has_free:
            while not self._free:
                self._has_free.wait(WAIT_S)
                exchange.raise_if_cut()
            slot = self._free.popleft()
        exchange.at_close.callback(self._give_back, slot)
        prompt = body["prompt"]
        with self._disk:
            if self._prompts:
                shared = {file: _num_shared(one, prompt) for file, one in self._prompts.items()}
                self._ask(slot, "restore", max(reversed(shared), key=shared.__getitem__))
                self._counts[RESTORED] += 1
        exchange.at_close.callback(self._save, slot, prompt)
        return {"id_slot": slot}

    def _give_back(self, slot: int) -> None:
        with self._has_free:
            self._free.append(slot)
            self._has_free.notify()

    def _save(self, slot: int, prompt: list[int]) -> None:
        """Saves the state of the slot; the server waits until it is idle."""
        with self._disk:
            file = f"slot-{self._counts[SAVED] % NUM_KEPT}"
            self._prompts.pop(file, None)
            self._ask(slot, "save", file)
            self._prompts[file] = prompt
            self._counts[SAVED] += 1

    def _ask(self, slot: int, action: str, file: str) -> None:
        try:
            self._server.ask("POST", f"/slots/{slot}?action={action}", {"filename": file})
        except Refused as refusal:
            self._server.on_failure()
            raise EngineFailed(f"the server does not {action} slot {slot}: {refusal}") from None


def _num_shared(one: list[int], other: list[int]) -> int:
    """Returns the length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
