"""A running program at the other end of three pipes: one question, one answer.

All waiting is done here, in Python, where the time limit of the suite, which is a signal, ends it.
After its first failure the process is killed, with all it has started, and each later question raises
the same words. An answer that is a JSON object but not the right one is no such failure: the two sides
are still in step.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from batchproof.errors import EngineHang
from batchproof_engines.adapters.lines.ending import end, how_it_ended, kill_group
from batchproof_engines.adapters.lines.messages import Answer, WrongAnswer, read_error
from batchproof_engines.adapters.lines.tail import Tail

MAX_LINE_BYTES = 64 * 1024**2
READ_BYTES = 1024**2
SHOWN = 200  # characters of what should not have come
LOOK_AGAIN_S = 0.5  # is it still there? What it started may hold its end of a pipe open

T = TypeVar("T")


class ProgramFailed(RuntimeError):
    """The program is gone or does not keep to the protocol; the message says what it did."""


class _Broken(Exception):
    """What the program did, without its name."""


class Process:
    """`forgotten`: engines that were dropped without `close`; the next build closes them."""

    def __init__(self, name: str, words: Sequence[str], folder: str) -> None:
        self.failure: str | None = None
        self.forgotten: list[int] = []
        self._name = name
        # A session of its own: whatever it starts can be killed with it.
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
        self._tail = Tail(self._popen.stderr.fileno())
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe, False)
        self._buffer = bytearray()  # of the answer, as far as it has come
        self._is_at_end = False

    def ask(self, message: dict[str, Any], read: Callable[[Answer], T], limit_s: float = math.inf) -> T:
        """Raises `ProgramFailed`, and `RuntimeError` with the program's words if its engine raised.
        `limit_s`: for a question that the suite sets no limit to."""
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
        except BaseException as error:  # Ctrl-C: an answer may still come, and be taken for another
            self.kill(f"was killed by {type(error).__name__} while it was to answer {op!r}")
            raise
        try:
            raised = read_error(answer)
            if raised is None:
                return read(answer)
        except WrongAnswer as wrong:
            raise ProgramFailed(f"the program {self._name!r} answered {op!r} with {wrong}") from None
        raise RuntimeError(raised)

    def kill(self, what: str) -> str:
        """End it because of what it did. Returns the words that its engines raise from now on."""
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
            raise _Broken(
                f"wrote a line that nobody had asked for, before {op!r}: {_shown(self._buffer)}"
            )
        unsent = memoryview(question)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            if not self._tail.is_at_end:
                selector.register(self._tail.pipe, selectors.EVENT_READ)
            while (length := self._buffer.find(b"\n", max(0, len(self._buffer) - READ_BYTES))) < 0:
                ready = [key.fd for key, _ in selector.select(LOOK_AGAIN_S)]
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
        except BrokenPipeError:  # reading will tell how it ended
            return unsent[:0]

    def _read(self) -> None:
        """What is there, without waiting for more."""
        with suppress(BlockingIOError):
            came = os.read(self._stdout, READ_BYTES)
            self._buffer += came
            self._is_at_end = not came

    def _how_it_ended(self, op: str) -> str:
        told = how_it_ended(self._popen)
        if not self._buffer:
            return f"{told} before it answered {op!r}"
        return f"{told} in the middle of its answer to {op!r}: {_shown(self._buffer)}"


def _json_object(line: bytearray, op: str) -> Answer:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise _Broken(f"answered {op!r} with a line that is no JSON object: {_shown(line)}")
    return given


def _shown(given: bytearray) -> str:
    text = given[: 4 * SHOWN].decode(errors="replace").strip()
    return repr(text[:SHOWN]) + ("..." if len(text) > SHOWN else "")
