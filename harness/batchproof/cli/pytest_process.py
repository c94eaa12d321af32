"""Runs pytest as a process of its own, on tests of this package and apart from the current project's.

It reads neither that project's configuration of pytest nor its conftest.py: the verdict on an engine
depends on the flags and on Batchproof's own configuration alone.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pytest

from batchproof.cli.config_file import DEST, NONE, OWN, required_engines, select_config
from batchproof.cli.option_names import CONFIG, JOBS, NO_CONFIG, RULE_OF_JOBS
from batchproof.errors import UsageError
from batchproof.records.provenance import ENDED, TYPED, command_line

WRONG_INPUT = 2
UNSTARTED = (  # of a run without a test, which says why
    pytest.ExitCode.INTERRUPTED,  # by an error while tests were collected
    pytest.ExitCode.USAGE_ERROR,
    pytest.ExitCode.NO_TESTS_COLLECTED,  # -k or -m selects none
)
WITHOUT_SESSION = {"-h", "--help", "-V", "--version", "--markers"}  # pytest only shows a text
TERMINATED = 128 + signal.SIGTERM
GRACE_S = 5.0  # for what a terminal has interrupted as well, before it is interrupted from here
FAULTHANDLER_TIMEOUT_S = 300  # shows a hang in native code, which no time limit interrupts


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Adds the engines and, after them, any options of pytest, as `arguments`."""
    parser.usage = f"{parser.prog} [ENGINE...] [PYTEST OPTIONS]"
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ENGINE",
        help=f"engines, as for pytest --engine, such as mine.py:Engine (default: those of {OWN}); "
        "options of pytest may follow",
    )


def run_pytest(tests: Path, arguments: Sequence[str], options: Sequence[str]) -> int:
    """Runs the tests in a folder on the engines that `arguments` begin with, else on those of the
    configuration, with further options of pytest.

    Returns the exit code of a command. Raises `UsageError` without an engine.
    """
    engines = list(takewhile(lambda each: not each.startswith("-"), arguments))
    typed = [*(f"--engine={engine}" for engine in engines), *arguments[len(engines) :]]
    known = _known(typed)
    config = select_config(getattr(known, DEST))
    if known.numprocesses and not re.fullmatch(JOBS, known.numprocesses):
        raise UsageError(f"-n is {known.numprocesses!r}, but must be {RULE_OF_JOBS}")
    if not known.engine:
        required_engines(config)
    return _run(tests, [*options, *typed])


def _known(typed: Sequence[str]) -> argparse.Namespace:
    """Returns the options of pytest that the command itself has to know."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--engine", CONFIG):  # pytest says what is wrong with them
        parser.add_argument(option, nargs="?", dest=DEST if option == CONFIG else None)
    parser.add_argument("-n", "--numprocesses", nargs="?")
    parser.add_argument(NO_CONFIG, dest=DEST, action="store_const", const=NONE)
    return parser.parse_known_args(typed)[0]


def _run(tests: Path, arguments: Sequence[str]) -> int:
    command = [
        *(sys.executable, "-m", "pytest", str(tests)),
        *("-c", os.devnull, f"--rootdir={Path.cwd()}", f"--confcutdir={tests}"),
        *("-p", "batchproof.plugin", "--import-mode=importlib", "-ra"),
        *("-o", f"faulthandler_timeout={FAULTHANDLER_TIMEOUT_S}"),
        *arguments,
    ]
    with tempfile.TemporaryDirectory() as folder:
        ended = Path(folder) / "ended"
        variables = {TYPED: command_line("batchproof"), ENDED: str(ended)}
        status = _status(command, os.environ | variables)
        has_ended = ended.exists() or not WITHOUT_SESSION.isdisjoint(arguments)
    if status < 0:
        name = signal.Signals(-status).name
        print(f"pytest was ended by {name}: --isolate finds the test and goes on", file=sys.stderr)
        return 128 - status
    if not has_ended and status not in UNSTARTED:
        print(
            f"pytest was ended before its last test, with exit status {status}, so an engine has ended "
            "it: --isolate finds the test and goes on",
            file=sys.stderr,
        )
        return int(pytest.ExitCode.TESTS_FAILED)
    return WRONG_INPUT if status in UNSTARTED else status


def _status(command: Sequence[str], environment: Mapping[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as interrupt:
            if getattr(interrupt, "exit_code", None) == TERMINATED:
                process.terminate()
            else:  # a terminal sends Ctrl-C to both, `kill` to this process alone
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            process.wait()  # pytest prints its summary
            raise
