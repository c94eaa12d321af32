"""A run of the suite on one engine, in a process of its own, and the verdict that it gives."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from batchproof.cli import choices
from batchproof.cli.config_file import find
from batchproof.cli.option_names import NO_CONFIG
from batchproof.errors import UsageError
from batchproof.places import CHECKOUT, ROOT, SUITE_ARGUMENTS, VERDICTS
from batchproof.plugin.declared import SERVES
from batchproof.records.journal import JournalEntry, entries
from batchproof.records.provenance import made_now
from batchproof.records.verdict import VERDICT, Conditions, EngineVerdict
from batchproof.requirements.issues import DEFAULT_ISSUES, KnownIssue
from batchproof.requirements.verdict_of_journal import verdict_of

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)  # of a session that ran to its end
STDERR = 2  # the file descriptor


def add_common(parser: argparse.ArgumentParser, default: str = "none") -> None:
    """Adds what all commands that write verdicts share: `--pytest`, `--findings`, `--output`, `--jobs`.
    `default`: in words, the arguments that `--pytest` takes the place of."""
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help=f"arguments of pytest in one text, as in --pytest='--dtype=bfloat16' (default: {default})",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=DEFAULT_ISSUES,
        metavar="FILE",
        help="what is known of failures (default: results/engines/findings.yaml)",
    )
    choices.add_common(parser)
    parser.set_defaults(output=VERDICTS)


def split_options(text: str) -> list[str]:
    """Returns the arguments of pytest in a text. Raises `UsageError`."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--pytest {text!r} cannot be split into arguments: {error}") from error


def suite_options(engine: str, given: str) -> list[str]:
    """Returns the options of a run: those that `--pytest` gives; all models unless it names some; and
    no configuration, but what it says that the engine serves. Raises `UsageError`."""
    options = split_options(given)
    if named := [each for each in options if each.partition("=")[0] == "--engine"]:
        raise UsageError(f"--pytest holds {named[0]}, but the command names the engine")
    if not any(each.startswith("--model") for each in options):
        options.append("--model=all")
    config = find()
    if config is not None:  # a page is about the whole suite, and expects no failure
        served = [] if SERVES in given else config.served_by([engine])
        options[:0] = [NO_CONFIG, *(f"{SERVES}={each}" for each in served)]
    return options


# Takes the verdict, the tests that it is about, and whether the run came to its end.
Conclude = Callable[[EngineVerdict, Sequence[JournalEntry], bool], None]


@dataclass(frozen=True)
class Session:
    """A run of the suite on one engine, and the folder for what it writes."""

    engine: str
    options: Sequence[str]  # more pytest arguments: models, dtype, -k
    jobs: int
    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def verdict(self) -> Path:
        return self.folder / "verdict.json"

    @property
    def arguments(self) -> list[str]:
        return [*SUITE_ARGUMENTS, f"--engine={self.engine}", *self.options]

    def judge(self, issues: Sequence[KnownIssue], conclude: Conclude) -> bool:
        """Runs the suite and hands on the verdict on the tests that were run, whatever stopped it.
        Returns whether there were any."""
        has_ended = False
        try:
            has_ended = self.run() in ENDED
        finally:
            if found := entries(self.journal):
                conclude(self._verdict_of(found, has_ended, issues), found, has_ended)
        return bool(found)

    def _verdict_of(
        self, found: Sequence[JournalEntry], has_ended: bool, issues: Sequence[KnownIssue]
    ) -> EngineVerdict:
        is_elsewhere = CHECKOUT not in (None, ROOT)  # where no path of the suite is right for all
        words = ["python", "-m", "batchproof", "test", f"--engine={self.engine}", *self.options]
        command = shlex.join(words if is_elsewhere else ["pytest", *self.arguments])
        conditions = Conditions(tuple(self.options))
        # By its own verdict the run left out no test: not by -k, -m or the like.
        is_whole = self.verdict.is_file() and VERDICT.read(self.verdict).is_complete
        is_complete = has_ended and is_whole
        return verdict_of(self.engine, found, is_complete, made_now(), command, conditions, issues)

    def run(self) -> int:
        """Returns the exit status of pytest, whose output goes to stderr. A worker that dies is
        replaced; only its test is lost."""
        command = [sys.executable, "-m", "pytest", *self.arguments, "-q", "-n", str(self.jobs)]
        command += [f"--journal={self.journal}", f"--repro={self.folder / 'failures'}"]
        command += [f"--verdict={self.verdict}", f"--rootdir={ROOT}"]
        # In a session of its own it gets each signal once, from here.
        with subprocess.Popen(command, cwd=ROOT, stdout=STDERR, start_new_session=True) as process:
            try:
                return process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()


@contextmanager
def session_of(engine: str, options: Sequence[str], jobs: int) -> Iterator[Session]:
    """Gives a session a folder for as long as it is used."""
    with TemporaryDirectory(prefix="batchproof-") as folder:
        yield Session(engine, options, jobs, Path(folder))
