"""Says what a run waits for: a run that prints nothing for a minute looks broken."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from batchproof.run.call_notes import CallNote

SILENT_S = 10.0  # a call that lasts longer is named
SECONDS_BETWEEN_LOOKS = 1.0


@contextmanager
def hang_notices(read: Callable[[], Iterable[CallNote]]) -> Iterator[None]:
    """Looks at the notes from a thread as long as the block lasts, and writes a line on stderr for each
    call that lasts. Capturing does not hide it, if it begins while pytest captures nothing."""
    try:
        stderr = os.dup(2)
    except OSError:  # there is none
        yield
        return
    is_over = threading.Event()
    thread = threading.Thread(target=_watch, args=(read, stderr, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        os.close(stderr)


def _watch(read: Callable[[], Iterable[CallNote]], stderr: int, is_over: threading.Event) -> None:
    said: set[float] = set()
    while not is_over.wait(SECONDS_BETWEEN_LOOKS):
        for note in read():
            if note.is_open and note.waited_s > SILENT_S and note.began not in said:
                said.add(note.began)
                with suppress(OSError):
                    os.write(stderr, _line(note).encode(errors="backslashreplace"))


def _line(note: CallNote) -> str:
    return (
        f"\nbatchproof: waiting for {note.call}, engine {note.engine} on {note.model}: "
        f"{note.waited_s:.0f} s of at most {note.limit_s:g} s\n"
    )
