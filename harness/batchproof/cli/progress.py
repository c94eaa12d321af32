"""The progress of a campaign: a bar on a terminal, an occasional line elsewhere."""

import sys

from tqdm import tqdm  # type: ignore[import-untyped]

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts finished work on stderr."""

    def __init__(self, what: str, unit: str, total: int) -> None:
        seconds = 0.1 if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
        times = {"mininterval": seconds, "maxinterval": max(seconds, 10.0), "smoothing": 0.05}
        self._bar = tqdm(total=total, desc=what, unit=unit, **times)

    def expect(self, count: int) -> None:
        """Says that at least as much remains."""
        self._bar.total = max(self._bar.total, self._bar.n + count)

    def step(self, count: int = 1, note: str = "") -> None:
        """Counts finished work, with a note on the last of it."""
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)

    def close(self) -> None:
        self._bar.close()
