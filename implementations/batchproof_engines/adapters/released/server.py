"""A released server that is started here, on a free loopback port, and restarted after a failure.

A server that has failed may stay broken: later tests would fail for what an earlier one has done, and a
verdict would report one fault as fifty. So the next engine built after a failure gets a new process.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO

from batchproof.errors import UnsupportedModelError, UsageError
from batchproof_engines.adapters.openai.client import EngineFailed, Refused, Server
from batchproof_engines.adapters.piped.process import how_it_ended, kill_group, last_lines
from batchproof_engines.adapters.released.libraries import LIBRARIES, ServerCommand

POLL_S = 0.25
TIMEOUT_S = 300.0  # of silence; the suite's own limit is shorter


class LocalServer:
    """A server and its command line, in which a free port is filled in for `{port}`, and a folder that
    lives as long as the process for `{scratch}`; `kind` says when it can serve, and what is counted."""

    def __init__(self, name: str, words: Sequence[str], kind: ServerCommand) -> None:
        self._name, self._words, self._kind = name, words, kind
        self._running: tuple[subprocess.Popen[bytes], Server] | None = None
        self._log: IO[bytes] | None = None
        self._num_read = 0  # bytes of the log
        self._counts_at_start: dict[str, int] = {}
        self._has_failed = False

    def running(self) -> Server:
        """Returns the running server, started or restarted if necessary. Raises `UsageError` if that
        fails, and `UnsupportedModelError` if one of the `refusals` says that the model is why."""
        if self._running is not None and (self._has_failed or self._running[0].poll() is not None):
            self._end()
            self._running = None
        if self._running is None:
            self._has_failed = False
            self._running = self._start()
        return self._running[1]

    def counted(self) -> dict[str, int]:
        """Returns how often the words of each event were written since the last call, and those of each
        mark before the server could serve."""
        assert self._log is not None, "it has been started"
        text = _behind(self._log, self._num_read)
        self._num_read += len(text)
        return _counts(text, self._kind.events) | self._counts_at_start

    def _note_failure(self) -> None:
        self._has_failed = True

    def _start(self) -> tuple[subprocess.Popen[bytes], Server]:
        port, scratch = _free_port(), tempfile.TemporaryDirectory()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._log, self._num_read = log, 0
        popen = subprocess.Popen(
            [
                each.replace("{port}", str(port)).replace("{scratch}", scratch.name)
                for each in self._words
            ],
            env=os.environ | self._kind.variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, popen, log, scratch)  # at exit, at the latest
        server = Server(f"http://127.0.0.1:{port}/v1", TIMEOUT_S, on_failure=self._note_failure)
        try:
            self._wait(popen, server, log)
        except BaseException:  # also a time limit, or Ctrl-C
            self._end()
            raise
        self._counts_at_start = _counts(_behind(log, 0), self._kind.started)
        self._has_failed = False  # requests before it was ready do not count
        return popen, server

    def _wait(self, popen: subprocess.Popen[bytes], server: Server, log: IO[bytes]) -> None:
        deadline = time.monotonic() + self._kind.ready_s
        while not _is_ready(server, self._kind.ready):
            has_ended = popen.poll() is not None
            if has_ended or time.monotonic() > deadline:
                late = f"was not ready within {self._kind.ready_s:g} s"
                what = how_it_ended(popen) if has_ended else late
                said = last_lines(log, "its output")
                refusal = self._refusal(log) if has_ended else None
                if refusal is not None:
                    raise UnsupportedModelError(f"{self._name} does not load the model: {refusal}")
                raise UsageError(f"the server of engine {self._name!r} {what}; {said}")
            time.sleep(POLL_S)

    def _refusal(self, log: IO[bytes]) -> str | None:
        """Returns the first line that has words of a refusal."""
        lines = _behind(log, 0).decode(errors="replace").splitlines()
        has_words = (line for line in lines if any(words in line for words in self._kind.refusals))
        return next(has_words, None)


def _behind(log: IO[bytes], start: int) -> bytes:
    """Returns what was written behind so many bytes."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size - start, start)


def _counts(text: bytes, events: Mapping[str, str]) -> dict[str, int]:
    return {name: len(re.findall(words.encode(), text)) for name, words in events.items()}


def _is_ready(server: Server, path: str) -> bool:
    """Returns whether the server can serve. Without a path that says so, an error of its own also shows
    that it is up."""
    try:
        server.ask("GET", path or "/models")
    except Refused:
        return not path
    except EngineFailed as error:
        return error.has_answered and not path
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(
    popen: subprocess.Popen[bytes], log: IO[bytes], scratch: tempfile.TemporaryDirectory[str]
) -> None:
    kill_group(popen)
    popen.wait()
    log.close()
    scratch.cleanup()


@cache
def kept_server(name: str, words: Sequence[str]) -> LocalServer:
    """Returns the server of a library: one for each model and choice of flags, which are among the
    words of its command line."""
    kind = LIBRARIES[name].server
    assert kind is not None, "the library is one"
    return LocalServer(name, words, kind)
