"""The last lines that a program wrote to its stderr, for error messages."""

from __future__ import annotations

import os

KEPT_BYTES = 8192
NUM_LINES = 8
LINE_LEN = 200
READ_BYTES = 65_536


class StderrTail:
    """Keeps the end of what is read from the file descriptor `pipe`, which is made non-blocking."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self.is_at_end = False
        self._kept = b""

    def read(self) -> bool:
        """Reads what is available. Returns whether the stream has ended."""
        while not self.is_at_end:
            try:
                came = os.read(self.pipe, READ_BYTES)
            except BlockingIOError:
                break
            self._kept = (self._kept + came)[-KEPT_BYTES:]
            self.is_at_end = not came
        return self.is_at_end

    def __str__(self) -> str:
        text = self._kept.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-NUM_LINES:]
        if not lines:
            return "it wrote nothing to its stderr"
        return "the last lines of its stderr:" + "".join(f"\n    {line[-LINE_LEN:]}" for line in lines)
