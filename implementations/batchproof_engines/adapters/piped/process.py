"""A running program at the other end of three pipes: one question, one answer.

All waiting happens here, in Python, where the time limit of the suite, a signal, can interrupt it.
After its first failure the process is killed with everything it has started, and each later question
raises the same message. An answer that is a JSON object, but the wrong one, is no such failure:
question and answer still alternate.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from batchproof.errors import EngineHang
from batchproof_engines.adapters.piped.messages import Answer, WrongAnswer, read_error

KEPT_BYTES = 8192
NUM_LINES = 8
LINE_LEN = 200
STDERR_READ_BYTES = 65_536


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
                came = os.read(self.pipe, STDERR_READ_BYTES)
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


GRACE_S = 1.0  # for a program to end by itself


def how_it_ended(popen: subprocess.Popen[bytes]) -> str:
    """Returns how a program ended that has closed its stdout or exited, as a predicate for a
    sentence."""
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    status = popen.returncode
    if status is None:
        return "closed its stdout"
    return f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"


def kill_group(popen: subprocess.Popen[bytes]) -> None:
    """Kills the program and everything it has started; it leads a process group."""
    with suppress(ProcessLookupError, PermissionError):  # the latter if only zombies are left
        os.killpg(popen.pid, signal.SIGKILL)


def end(popen: subprocess.Popen[bytes]) -> None:
    """Asks the program to end by closing its stdin, then kills what is left and releases all
    resources."""
    assert popen.stdin, "it is a pipe"
    popen.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    kill_group(popen)
    popen.wait()
    for pipe in (popen.stdout, popen.stderr):
        assert pipe, "it is a pipe"
        pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


MAX_LINE_BYTES = 64 * 1024**2
READ_BYTES = 1024**2
SHOWN = 200  # characters of unexpected output in an error
POLL_S = 0.5  # to see whether the process has ended: its children may hold its pipes open

T = TypeVar("T")


class ProgramFailed(RuntimeError):
    """The program has ended or violates the protocol; the message says what it did."""


class _Broken(Exception):
    """What the program did, without its name."""


class Process:
    """A process of a piped program.

    `failure` is the message of its first failure; `abandoned` has the numbers of engines that were
    dropped without `close`, which the next build closes.
    """

    def __init__(self, name: str, words: Sequence[str], folder: str) -> None:
        self.failure: str | None = None
        self.abandoned: list[int] = []
        self._name = name
        # In a session of its own, so that everything it starts can be killed with it.
        self._popen = subprocess.Popen(
            words,
            bufsize=0,
            cwd=folder,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._end = weakref.finalize(self, end, self._popen)  # at exit, at the latest
        assert self._popen.stdin, "it is a pipe"
        assert self._popen.stdout, "it is a pipe"
        assert self._popen.stderr, "it is a pipe"
        self._stdin, self._stdout = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        self._tail = StderrTail(self._popen.stderr.fileno())
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe, False)
        self._buffer = bytearray()  # the part of the answer received so far
        self._is_at_end = False

    def ask(self, message: dict[str, Any], read: Callable[[Answer], T], limit_s: float = math.inf) -> T:
        """Sends a message and returns what `read` makes of the answer.

        `limit_s` is for questions without a time limit of the suite. Raises `ProgramFailed`, and
        `RuntimeError` with the program's message if its engine raised.
        """
        if self.failure is not None:
            raise ProgramFailed(self.failure)
        op, question = message["op"], json.dumps(message).encode() + b"\n"
        try:
            answer = self._exchange(question, op, limit_s)
        except _Broken as broken:
            raise ProgramFailed(self.kill(str(broken))) from None
        except EngineHang as hang:
            killed = self.kill(f"did not answer {op!r} within the time limit and was killed")
            raise EngineHang(hang.what, (*hang.evidence, killed)) from None
        except BaseException as error:  # Ctrl-C: a late answer would be taken for another one
            self.kill(f"was killed by {type(error).__name__} while answering {op!r}")
            raise
        try:
            raised = read_error(answer)
            if raised is None:
                return read(answer)
        except WrongAnswer as wrong:
            raise ProgramFailed(f"the program {self._name!r} answered {op!r} with {wrong}") from None
        raise RuntimeError(raised)

    def kill(self, what: str) -> str:
        """Ends the process because of what it did. Returns the message that its engines raise from now
        on."""
        if self.failure is not None:
            return self.failure
        kill_group(self._popen)
        self._tail.read()
        self._end()
        self.failure = f"the program {self._name!r} {what}; {self._tail}"
        return self.failure

    def _exchange(self, question: bytes, op: str, limit_s: float) -> Answer:
        deadline = monotonic() + limit_s
        self._read()
        if self._buffer:
            raise _Broken(f"wrote an unsolicited line before {op!r}: {_shown(self._buffer)}")
        unsent = memoryview(question)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            if not self._tail.is_at_end:
                selector.register(self._tail.pipe, selectors.EVENT_READ)
            while (length := self._buffer.find(b"\n", max(0, len(self._buffer) - READ_BYTES))) < 0:
                ready = [key.fd for key, _ in selector.select(POLL_S)]
                if self._tail.pipe in ready and self._tail.read():
                    selector.unregister(self._tail.pipe)
                if self._stdin in ready:
                    unsent = self._write(unsent)
                    if not unsent:
                        selector.unregister(self._stdin)
                has_ended = not ready and self._popen.poll() is not None
                if self._stdout in ready:
                    self._read()
                if self._is_at_end or has_ended:
                    raise _Broken(self._how_it_ended(op))
                if monotonic() > deadline:
                    raise _Broken(f"did not answer {op!r} within {limit_s:g} s and was killed")
                if len(self._buffer) > MAX_LINE_BYTES:
                    size = MAX_LINE_BYTES // 1024**2
                    raise _Broken(
                        f"answered {op!r} with a line of more than {size} MB: {_shown(self._buffer)}"
                    )
        line, rest = self._buffer[:length], self._buffer[length + 1 :]
        self._buffer.clear()
        answer = _json_object(line, op)
        if rest:
            raise _Broken(f"answered {op!r} with more than one line; then came {_shown(rest)}")
        if unsent:
            raise _Broken(f"answered {op!r} before it had read it: {_shown(line)}")
        return answer

    def _write(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._stdin, unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:  # reading will show how it ended
            return unsent[:0]

    def _read(self) -> None:
        """Reads what is available, without waiting."""
        with suppress(BlockingIOError):
            came = os.read(self._stdout, READ_BYTES)
            self._buffer += came
            self._is_at_end = not came

    def _how_it_ended(self, op: str) -> str:
        ending = how_it_ended(self._popen)
        if not self._buffer:
            return f"{ending} before it answered {op!r}"
        return f"{ending} in the middle of its answer to {op!r}: {_shown(self._buffer)}"


def _json_object(line: bytearray, op: str) -> Answer:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise _Broken(f"answered {op!r} with a line that is not a JSON object: {_shown(line)}")
    return given


def _shown(given: bytearray) -> str:
    text = given[: 4 * SHOWN].decode(errors="replace").strip()
    return repr(text[:SHOWN]) + ("..." if len(text) > SHOWN else "")
