"""A program that is started here and asked for work: behind a pipe, or as a server."""

import os
import signal
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

TAIL_BYTES = 8192  # of what a program has written, in an error
NUM_LINES = 8
LINE_LEN = 200
GRACE_S = 1.0  # for a program to end by itself

_ALL: "weakref.WeakSet[Child]" = weakref.WeakSet()


def kill_all() -> None:
    """Kills every program that still runs here, so that its memory is free. It starts anew when an
    engine of it is built."""
    for each in [*_ALL]:
        if each.popen.poll() is None:
            each.kill()
            each.popen.wait()
            each.was_dismissed = True


class Child:
    """A running program, in a session of its own, so that all that it starts ends with it: when `end`
    is called, or at exit at the latest.

    What it writes goes to a log, unless its stdout is a pipe. `options` are those of `Popen`.
    """

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        self.was_dismissed = False  # it is no failure that it does not answer
        self._log = TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        given = {"stdin": subprocess.DEVNULL, "stdout": self._log, **options}
        self.popen: subprocess.Popen[bytes] = subprocess.Popen(
            words, stderr=self._log, start_new_session=True, **given
        )
        self.end = weakref.finalize(self, _end, self.popen, self._log)
        _ALL.add(self)

    @property
    def num_logged(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def logged(self, since: int = 0) -> bytes:
        """Returns what is in the log behind `since` bytes. A running program shares the position in the
        file, which stays where it is."""
        return os.pread(self._log.fileno(), self.num_logged - since, since)

    def forget(self) -> None:
        """Empties the log."""
        self._log.truncate(0)
        self._log.seek(0)  # the program shares the position

    def last_lines(self, stream: str, since: int = 0) -> str:
        """Returns the end of what is in the log behind `since` bytes, for an error."""
        text = self.logged(max(since, self.num_logged - TAIL_BYTES)).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-NUM_LINES:]
        if not lines:
            return f"it wrote nothing to {stream}"
        return f"the last lines of {stream}:" + "".join(f"\n    {line[-LINE_LEN:]}" for line in lines)

    def how_it_ended(self) -> str:
        """Returns how a program ended that has closed its stdout or exited, as a predicate for a
        sentence."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(GRACE_S)
        status = self.popen.returncode
        if status is None:
            return "closed its stdout"
        if status < 0:
            return f"was killed by {_signal_name(-status)}"
        return f"exited with status {status}"

    def kill(self) -> None:
        _kill(self.popen)


def _kill(popen: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the latter if only zombies are left
        os.killpg(popen.pid, signal.SIGKILL)


def _end(popen: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Asks a program behind a pipe to end by closing its stdin, then kills what is left and releases
    all resources."""
    if popen.stdin is not None:
        popen.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            popen.wait(GRACE_S)
    _kill(popen)
    popen.wait()
    if popen.stdout is not None:
        popen.stdout.close()
    log.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
