"""The progress of a campaign: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm  # type: ignore[import-untyped]

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts finished work on stderr. `is_bar` draws a bar even if stderr is no terminal."""

    def __init__(self, what: str, unit: str, total: int, is_bar: bool = False) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._done = 0
        self._is_bar = is_bar or sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=what, unit=unit, disable=not self._is_bar, smoothing=0.05)
        self._began = self._last_line = time.monotonic()

    def expect(self, count: int) -> None:
        """Says that at least as much remains."""
        self._total = max(self._total, self._done + count)
        self._bar.total = self._total

    def step(self, count: int = 1, note: str = "") -> None:
        """Counts finished work, with a note on the last of it."""
        self._done += count
        self._bar.update(count)
        self._bar.set_postfix_str(note, refresh=False)
        if not self._is_bar and time.monotonic() > self._last_line + SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            minutes = (self._last_line - self._began) / 60
            line = f"{self._what}: {self._done:,} of {self._total:,} {self._unit}s, {minutes:.1f} min"
            print(f"{line}; {note}" if note else line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()
