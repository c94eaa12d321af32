"""The exceptions that a trial raises: each holds a complete failure."""

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from batchproof.errors import EngineHang
from batchproof.findings.finding import Failure
from batchproof.findings.finding_text import failure_text
from batchproof.places import CHECKOUT, PACKAGE, SUITE, repository

# An engine's frames lie within those of the harness; the pipe to a program is no engine.
_PIPE = "implementations/batchproof_engines/adapters/piped"
_OF_THE_CHECKOUT = (str(CHECKOUT / _PIPE),) if CHECKOUT else ()
OURS = (str(PACKAGE), str(SUITE), contextlib.__file__, *_OF_THE_CHECKOUT)

INSTALLED = {"site-packages", "dist-packages"}  # folders of others
STDLIB = sysconfig.get_path("stdlib") + os.sep


def is_library(file: str) -> bool:
    """Returns whether a file of the traceback is installed, of Python itself, or none at all."""
    return file.startswith((STDLIB, "<")) or not INSTALLED.isdisjoint(Path(file).parts)


class ConformanceFailure(AssertionError):
    """Raised if the engine broke a promise."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)


class HangFailure(EngineHang):
    """Raised if the engine does not end (promise P10)."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.finding.facts["what"]))
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)


def last_frames(error: BaseException, count: int = 3) -> list[str]:
    """Returns the innermost `count` frames of the traceback, one line each, and before them, if they
    are of a library, the last ones in the engine's own files. A file below the working directory is
    named from there, so that a failure can be passed on."""
    walked = list(traceback.walk_tb(error.__traceback__))
    files = [frame.f_code.co_filename for frame, _ in walked]
    engines = [at for at, file in enumerate(files) if not file.startswith(OURS)]
    folder = os.path.dirname(files[engines[0]]) if engines else None  # of an engine that is installed
    own = [at for at in engines if not is_library(files[at])]
    own = own or [at for at in engines if os.path.dirname(files[at]) == folder]
    shown = sorted({*own[-count:], *range(len(walked))[-count:]})
    frames = traceback.StackSummary.extract([walked[at] for at in shown])  # not of all: recursion
    here = f"{os.getcwd()}{os.sep}"
    return [
        f"{frame.filename.removeprefix(here)}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in frames
    ]


def notes_of(error: BaseException) -> list[str]:
    """Returns the lines of the exception's notes, as of what a program has written meanwhile."""
    return [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]


Frame = tuple[str, int, str]  # file, line, function: JSON values, for a finding's facts


def raised_at(error: BaseException) -> Frame | None:
    """Returns the innermost frame of the repository's own that the exception passed, or None."""
    walked = traceback.walk_tb(error.__traceback__)
    return innermost((frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked)


def place_words(error: BaseException) -> str:
    """Returns ` (file:line in function)` of the frame where it was `raised_at`; empty without one."""
    return " ({}:{} in {})".format(*at) if (at := raised_at(error)) else ""


def innermost(frames: Iterable[Frame]) -> Frame | None:
    """Returns the last of the frames, outermost first, whose file is the repository's own."""
    root = repository()
    for file, line, name in reversed(list(frames)):
        path = Path(file)
        is_own = path.is_relative_to(root) and not is_library(file)  # some lie below the root
        if is_own and not file.startswith(OURS):
            return path.relative_to(root).as_posix(), line, name
    return None
