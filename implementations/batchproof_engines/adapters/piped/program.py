"""A command line and its process, which is kept between engines and restarted after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from batchproof.errors import UsageError
from batchproof_engines.adapters.piped.process import Process
from batchproof_engines.adapters.piped.protocol import CAPABILITIES, VERSION, Hello

MOST_NOTE_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Running:
    """A process that has answered `hello`."""

    process: Process
    hello: Hello


class Program:
    """Starts its process when it is first needed, in the working directory it was created in.

    `name` is what follows `--engine`.
    """

    def __init__(self, name: str, words: Sequence[str], folder: str) -> None:
        self.engine_numbers = count(1)
        self._name = name
        self._words = words
        self._folder = folder
        self._running: Running | None = None

    def running(self) -> Running:
        """Returns the running process, starting it if necessary.

        Raises `UsageError` if it cannot be started, declares a capability that the protocol does not
        have, or has notes that could forge a section of the page that they become part of.
        """
        if self._running is None or self._running.process.failure is not None:
            self._running = self._start()
        return self._running

    def _start(self) -> Running:
        try:
            process = Process(self._name, self._words, self._folder)
        except OSError as error:
            raise UsageError(
                f"--engine {self._name!r}: cannot start {self._words[0]!r}: {error.strerror}"
            ) from error
        try:
            hello = process.ask({"op": "hello", "protocol": VERSION}, Hello)
            self._check(hello)
        except BaseException:
            process.kill("was ended: its answer to 'hello' was invalid")
            raise
        return Running(process, hello)

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
