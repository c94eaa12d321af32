"""How far a campaign is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm  # type: ignore[import-untyped]

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts what is done on stderr. `is_bar`: draw a bar even if stderr is no terminal."""

    def __init__(self, what: str, unit: str, total: int, is_bar: bool = False) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._done = 0
        self._is_bar = is_bar or sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=what, unit=unit, disable=not self._is_bar, smoothing=0.05)
        self._began = self._last_line = time.monotonic()

    def extend(self, total: int) -> None:
        """There is more to do."""
        self._total += total
        self._bar.total = self._total

    def step(self, count: int = 1, note: str = "") -> None:
        self._done += count
        self._bar.update(count)
        self._bar.set_postfix_str(note, refresh=False)
        if not self._is_bar and time.monotonic() > self._last_line + SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            minutes = (self._last_line - self._began) / 60
            line = f"{self._what}: {self._done:,} of {self._total:,} {self._unit}s, {minutes:.1f} min"
            print(f"{line}; {note}" if note else line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
