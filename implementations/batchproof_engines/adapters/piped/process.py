"""A running program at the other end of two pipes: one question, one answer. What it writes to its
stderr goes to a file.

All waiting happens here, in Python, where the time limit of the suite, a signal, can interrupt it.
After its first failure the process is killed with everything it has started, and each later question
raises the same message. An answer that is a JSON object, but the wrong one, is no such failure:
question and answer still alternate.
"""

import json
import math
import os
import selectors
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from time import monotonic
from typing import Any

from batchproof.errors import EngineHang, UsageError
from batchproof.records.decode import DecodeError, decode
from batchproof_engines.adapters.child import Child
from batchproof_engines.adapters.piped.messages import ANSWERS, CAPABILITIES, Failed, Hello, Nothing
from batchproof_engines.adapters.piped.protocol import VERSION

MAX_LOG_BYTES = 64 * 1024**2  # of a program's stderr, which is then thrown away
MAX_LINE_BYTES = 64 * 1024**2
READ_BYTES = 1024**2
SHOWN = 200  # characters of unexpected output in an error
MOST_NOTE_CHARACTERS = 400
POLL_S = 0.5  # to see whether the process has ended: its children may hold its pipes open


class ProgramFailed(RuntimeError):
    """The program has ended or violates the protocol; the message says what it did."""


class _Broken(Exception):
    """What the program did, without its name."""


class Process:
    """A process of a piped program.

    `hello` is its first answer, `failure` the message of its first failure. `abandoned` has the numbers
    of engines that were dropped without `close`, which the next build closes.
    """

    hello: Hello

    def __init__(self, name: str, words: Sequence[str], folder: str) -> None:
        self.failure: str | None = None
        self.abandoned: list[int] = []
        self._name = name
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._child = Child(words, cwd=folder, bufsize=0, **pipes)
        popen = self._child.popen
        assert popen.stdin, "it is a pipe"
        assert popen.stdout, "it is a pipe"
        self._stdin, self._stdout = popen.stdin.fileno(), popen.stdout.fileno()
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe, False)
        self._buffer = bytearray()  # the part of the answer received so far
        self._is_at_end = False
        self._num_logged = 0  # bytes in the log when it was asked last

    def ask(self, message: dict[str, Any], limit_s: float = math.inf) -> Any:
        """Sends a message and returns the answer, which must be of its kind. An answer is never
        repaired, because that would hide a mistake of the program.

        `limit_s` is for questions without a time limit of the suite. Raises `ProgramFailed`, and
        `RuntimeError` with the program's message if its engine raised; the last lines that it wrote to
        stderr meanwhile are a note of the exception.
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
            raise EngineHang(hang.what, (killed, *hang.evidence)) from None
        except BaseException as error:  # Ctrl-C: a late answer would be taken for another one
            self.kill(f"was killed by {type(error).__name__} while answering {op!r}")
            raise
        try:
            if "error" not in answer:
                return decode(ANSWERS.get(op, Nothing), answer)
            said = decode(Failed, answer).error
        except DecodeError as error:
            raise ProgramFailed(
                f"the program {self._name!r} answered {op!r} with an object that does not fit: {error}"
            ) from None
        raise self._raised(said)  # in no variable here: its traceback would keep the engine

    def _raised(self, said: str) -> RuntimeError:
        error = RuntimeError(said)
        if self._child.num_logged > self._num_logged:
            error.add_note(self._child.last_lines("its stderr", self._num_logged))
        return error

    @property
    def was_dismissed(self) -> bool:
        return self._child.was_dismissed

    def kill(self, what: str) -> str:
        """Ends the process because of what it did. Returns the message that its engines raise from now
        on."""
        if self.failure is not None:
            return self.failure
        self._child.kill()
        said = self._child.last_lines("its stderr")
        self._child.end()
        self.failure = f"the program {self._name!r} {what}; {said}"
        return self.failure

    def _exchange(self, question: bytes, op: str, limit_s: float) -> dict[str, Any]:
        deadline = monotonic() + limit_s
        if self._child.num_logged > MAX_LOG_BYTES:
            self._child.forget()
        self._num_logged = self._child.num_logged
        self._read()
        if self._buffer:
            raise _Broken(f"wrote an unsolicited line before {op!r}: {_shown(self._buffer)}")
        unsent = memoryview(question)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while (length := self._buffer.find(b"\n", max(0, len(self._buffer) - READ_BYTES))) < 0:
                ready = [key.fd for key, _ in selector.select(POLL_S)]
                if self._stdin in ready:
                    unsent = self._write(unsent)
                    if not unsent:
                        selector.unregister(self._stdin)
                has_ended = not ready and self._child.popen.poll() is not None
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
        ending = self._child.how_it_ended()
        if not self._buffer:
            return f"{ending} before it answered {op!r}"
        return f"{ending} in the middle of its answer to {op!r}: {_shown(self._buffer)}"


def _json_object(line: bytearray, op: str) -> dict[str, Any]:
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


class Program:
    """Starts its process when it is first needed, in the working directory it was created in.

    `name` is what follows `--engine`.
    """

    def __init__(self, name: str, words: Sequence[str], folder: str) -> None:
        self.engine_numbers = count(1)
        self._name = name
        self._words = words
        self._folder = folder
        self._process: Process | None = None

    def process(self) -> Process:
        """Returns the running process, starting it if necessary.

        Raises `UsageError` if it cannot be started, declares a capability that the protocol does not
        have, or has notes that could forge a section of the page that they become part of.
        """
        known = self._process
        if known is None or known.failure is not None or known.was_dismissed:
            known = self._process = self._start()
        return known

    def _start(self) -> Process:
        try:
            process = Process(self._name, self._words, self._folder)
        except OSError as error:
            raise UsageError(
                f"--engine {self._name!r}: cannot start {self._words[0]!r}: {error.strerror}"
            ) from error
        try:
            process.hello = process.ask({"op": "hello", "protocol": VERSION})
            self._check(process.hello)
        except BaseException:
            process.kill("was ended: its answer to 'hello' was invalid")
            raise
        return process

    def _check(self, hello: Hello) -> None:
        for note in hello.notes:
            if not note.isprintable() or not 0 < len(note) <= MOST_NOTE_CHARACTERS:
                raise UsageError(
                    f"--engine {self._name!r}: its hello has the note "
                    f"{note[:MOST_NOTE_CHARACTERS]!r}, but a note is one printable line of at most "
                    f"{MOST_NOTE_CHARACTERS} characters"
                )
        for name in hello.capabilities:
            if name not in CAPABILITIES:
                raise UsageError(
                    f"--engine {self._name!r}: its hello declares the capability {name!r}, but "
                    f"protocol {VERSION} knows only {', '.join(CAPABILITIES)}"
                )


# One for all engines of the same command line, so that they share its process.
kept_program = cache(Program)
