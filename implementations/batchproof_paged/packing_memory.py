"""What was measured here before: what kernels gain, in a file that other processes read.

`batchproof/linears.json` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`) holds the
answers by machine and version of torch. Whoever doubts them deletes it. If it cannot be read or
written, each process measures for itself.
"""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from batchproof.errors import UsageError
from batchproof.places import user_cache
from batchproof.records.file_kinds import replace_text


class Memory:
    """Answers by question, of this process and, on this machine, of those before it."""

    def __init__(self) -> None:
        self._known: dict[str, float] | None = None

    def recall(self, question: str) -> float | None:
        """Returns the answer, or None if it was never measured."""
        if self._known is None:
            self._known = {
                name: gain
                for name, gain in _read().get(_machine(), {}).items()
                if isinstance(gain, float)
            }
        return self._known.get(question)

    def keep(self, question: str, gain: float) -> None:
        """Keeps an answer, beside those that other processes have kept meanwhile."""
        assert self._known is not None, "whoever measures has asked before"
        self._known[question] = gain
        found = _read()
        found[_machine()] = found.get(_machine(), {}) | self._known
        with suppress(OSError, UsageError):
            _place().parent.mkdir(parents=True, exist_ok=True)
            replace_text(_place(), json.dumps(found, indent=1))


def _place() -> Path:
    return user_cache() / "linears.json"


def _machine() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.node()}, {capability}, torch {torch.__version__}"


def _read() -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(_place().read_text(encoding="utf-8"))
        return {name: answers for name, answers in found.items() if isinstance(answers, dict)}
    except (OSError, ValueError, AttributeError, RuntimeError):  # no file, no JSON, no table, no home
        return {}
