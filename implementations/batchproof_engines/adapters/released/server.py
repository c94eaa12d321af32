"""A released server that is started here, on a free loopback port, and restarted after a failure.

A server that has failed may stay broken: later tests would fail for what an earlier one has done, and a
verdict would report one fault as fifty. So the next engine built after a failure gets a new process.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache

from batchproof.errors import UnsupportedModelError, UsageError
from batchproof_engines.adapters.child import Child
from batchproof_engines.adapters.openai.client import EngineFailed, Refused, Server
from batchproof_engines.adapters.released.libraries import LIBRARIES, ServerCommand

POLL_S = 0.25
TIMEOUT_S = 300.0  # of silence; the suite's own limit is shorter


class LocalServer:
    """A server and its command line, in which a free port is filled in for `{port}`, and a folder that
    lives as long as the process for `{scratch}`; `kind` says when it can serve, and what is counted."""

    def __init__(self, name: str, words: Sequence[str], kind: ServerCommand) -> None:
        self._name, self._words, self._kind = name, words, kind
        self._child: Child | None = None
        self._num_read = 0  # bytes of its log
        self._counts_at_start: dict[str, int] = {}
        self._has_failed = False

    def running(self) -> Server:
        """Returns the running server, started or restarted if necessary. Raises `UsageError` if that
        fails, and `UnsupportedModelError` if one of the `refusals` says that the model is why."""
        if self._child is None or self._has_failed or self._child.popen.poll() is not None:
            self._end()
            self._start()
        return self._server

    def counted(self) -> dict[str, int]:
        """Returns how often the words of each event were written since the last call, and those of each
        mark before the server could serve."""
        assert self._child is not None, "it has been started"
        text = self._child.logged(self._num_read)
        self._num_read += len(text)
        return _counts(text, self._kind.events) | self._counts_at_start

    def _note_failure(self) -> None:
        self._has_failed = True

    def _start(self) -> None:
        port, self._scratch = str(_free_port()), tempfile.TemporaryDirectory()
        filled = (each.replace("{port}", port) for each in self._words)
        words = [each.replace("{scratch}", self._scratch.name) for each in filled]
        self._server = Server(f"http://127.0.0.1:{port}/v1", TIMEOUT_S, on_failure=self._note_failure)
        self._child = Child(words, env=os.environ | self._kind.variables)
        try:
            self._wait(self._child)
        except BaseException:  # also a time limit, or Ctrl-C
            self._end()
            raise
        self._num_read = 0
        self._counts_at_start = _counts(self._child.logged(), self._kind.started)
        self._has_failed = False  # requests before it was ready do not count

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._scratch.cleanup()

    def _wait(self, child: Child) -> None:
        deadline = time.monotonic() + self._kind.ready_s
        while not _is_ready(self._server, self._kind.ready):
            has_ended = child.popen.poll() is not None
            if has_ended or time.monotonic() > deadline:
                late = f"was not ready within {self._kind.ready_s:g} s"
                what = child.how_it_ended() if has_ended else late
                refusal = self._refusal(child) if has_ended else None
                if refusal is not None:
                    raise UnsupportedModelError(f"{self._name} does not load the model: {refusal}")
                said = child.last_lines("its output")
                raise UsageError(f"the server of engine {self._name!r} {what}; {said}")
            time.sleep(POLL_S)

    def _refusal(self, child: Child) -> str | None:
        """Returns the first line that has words of a refusal."""
        lines = child.logged().decode(errors="replace").splitlines()
        has_words = (line for line in lines if any(words in line for words in self._kind.refusals))
        return next(has_words, None)


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


@cache
def kept_server(name: str, words: Sequence[str]) -> LocalServer:
    """Returns the server of a library: one for each model and choice of flags, which are among the
    words of its command line."""
    kind = LIBRARIES[name].server
    assert kind is not None, "the library is one"
    return LocalServer(name, words, kind)
