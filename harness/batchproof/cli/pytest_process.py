"""Runs pytest as a process of its own, on tests of this package and apart from the current project's.

It reads neither that project's configuration nor its conftest.py: the verdict on an engine does not
depend on the folder that the command is typed in.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from batchproof.errors import UsageError
from batchproof.records.made import ENDED, TYPED, command_line

EXIT_CODES = {  # of pytest -> of a command; the others are the same
    int(pytest.ExitCode.INTERRUPTED): 2,  # by an error while tests were collected
    int(pytest.ExitCode.USAGE_ERROR): 2,
    int(pytest.ExitCode.NO_TESTS_COLLECTED): 2,  # -k or -m selects none
}
TERMINATED = 128 + signal.SIGTERM
FAULTHANDLER_TIMEOUT_S = 300  # shows a hang in native code, which no time limit interrupts


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Adds the engines and, after them, any options of pytest, as `arguments`."""
    parser.usage = f"{parser.prog} ENGINE... [PYTEST OPTIONS]"
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ENGINE",
        help="engines, as for pytest --engine, such as mine.py:Engine; options of pytest may follow",
    )


def run_pytest(tests: Path, arguments: Sequence[str], options: Sequence[str]) -> int:
    """Runs the tests in a folder on the engines that `arguments` begin with, with further options of
    pytest.

    Returns the exit code of a command. Raises `UsageError` without an engine.
    """
    engines = list(takewhile(lambda each: not each.startswith("-"), arguments))
    if not engines:
        raise UsageError("no ENGINE is given: name one, such as mine.py:Engine or paged")
    command = [
        *(sys.executable, "-m", "pytest", str(tests)),
        *("-c", os.devnull, f"--rootdir={Path.cwd()}", f"--confcutdir={tests}"),
        *("-p", "batchproof.plugin", "--import-mode=importlib", "-ra"),
        *("-o", f"faulthandler_timeout={FAULTHANDLER_TIMEOUT_S}"),
        *options,
        *(f"--engine={engine}" for engine in engines),
        *arguments[len(engines) :],
    ]
    with tempfile.TemporaryDirectory() as folder:
        ended = Path(folder) / "ended"
        told = {TYPED: command_line("batchproof"), ENDED: str(ended)}
        status = _status(command, os.environ | told)
        has_ended = ended.exists()
    if status < 0:
        name = signal.Signals(-status).name
        print(f"pytest was ended by {name}: --isolate finds the test and goes on", file=sys.stderr)
        return 128 - status
    if status == 0 and not has_ended:  # else the status says that something is wrong
        print(
            "pytest was ended before its last test, with exit status 0, so an engine has ended it: "
            "--isolate finds the test and goes on",
            file=sys.stderr,
        )
        return int(pytest.ExitCode.TESTS_FAILED)
    return EXIT_CODES.get(status, status)


def _status(command: Sequence[str], environment: Mapping[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as interrupt:
            if getattr(interrupt, "exit_code", None) == TERMINATED:  # a terminal sends Ctrl-C to both
                process.terminate()
            process.wait()  # pytest prints its summary
            raise
