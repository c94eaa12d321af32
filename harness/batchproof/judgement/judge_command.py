"""`batchproof judge ENGINE...`: runs the whole suite on each engine and writes a page about it."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.option_names import NO_CONFIG
from batchproof.errors import UsageError
from batchproof.judgement.output import write_index, write_verdict
from batchproof.places import ROOT, SUITE_ARGUMENTS, VERDICTS
from batchproof.plugin.declared import SERVES
from batchproof.plugin.scoring import SET
from batchproof.records.journal import JournalEntry, entries
from batchproof.records.provenance import made_now
from batchproof.records.verdict import VERDICT, Conditions, EngineVerdict, FailureGroup
from batchproof.requirements.issues import DEFAULT_ISSUES, KnownIssue, read_issues
from batchproof.requirements.sets import RequirementSet, load
from batchproof.requirements.verdict_of_journal import Asked, verdict_of

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)  # of a session that ran to its end
STDERR = 2  # the file descriptor

REPLAY = (sys.executable, "-m", "batchproof", "replay")
NUM_REPLAYS = 2
REPLAY_TIME_LIMIT_S = 300
REPLAY_WORDS = {0: "not reproduced", 1: "reproduced", 2: "could not be run"}  # by exit status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"engines to judge, as for pytest --engine (default: those of {OWN})")
    parser.add_argument(
        SET,
        metavar="SET",
        help="judge by a dated set of requirements, on its models (default: all tests on all models)",
    )
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help="more arguments of pytest in one text, such as '--dtype=bfloat16 -k prefix'",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=DEFAULT_ISSUES,
        metavar="FILE",
        help="what is known of failures (default: results/engines/findings.yaml)",
    )
    choices.add_output(parser)
    choices.add_jobs(parser)
    parser.set_defaults(output=VERDICTS)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine keeps what it was tested on, else 1. Ctrl-C keeps what is done.
    Raises `UsageError`.
    """
    engines = arguments.engines or required_engines(find())
    if len(set(engines)) < len(engines):
        twice = next(e for e in engines if engines.count(e) > 1)
        raise UsageError(f"{twice!r} is named twice")
    output, issues = choices.writable(arguments.output).resolve(), read_issues(arguments.findings)
    verdicts = [_judge(engine, arguments, output, issues) for engine in engines]
    return 0 if all(each.is_complete and not each.defects for each in verdicts) else 1


def _judge(
    engine: str, arguments: argparse.Namespace, output: Path, issues: Sequence[KnownIssue]
) -> EngineVerdict:
    with TemporaryDirectory(prefix="batchproof-") as folder:
        session = _session(engine, arguments, Path(folder))
        has_ended = False
        try:
            has_ended = session.run() in ENDED
        finally:  # whatever stopped it: what is done is written
            found = entries(session.journal)
            if found:
                verdict = _conclude(session, found, has_ended, output, issues)
    if not found:
        raise UsageError(f"{engine!r} is not judged, since no test was run: see above")
    return verdict


def _session(engine: str, arguments: argparse.Namespace, folder: Path) -> Session:
    try:
        options = shlex.split(arguments.pytest)
    except ValueError as error:
        raise UsageError(
            f"--pytest {arguments.pytest!r} cannot be split into arguments: {error}"
        ) from error
    asked = load(arguments.requirements) if arguments.requirements else None
    if asked is not None:
        options.append(f"{SET}={asked.name}")
    elif not any(each.startswith("--model") for each in options):
        options.append("--model=all")
    config = find()
    if config is not None:  # a page is about the whole suite, and expects no failure
        served = [] if SERVES in arguments.pytest else config.served_by([engine])
        options[:0] = [NO_CONFIG, *(f"{SERVES}={each}" for each in served)]
    return Session(engine, options, arguments.jobs, folder, asked)


def _conclude(
    session: Session,
    found: Sequence[JournalEntry],
    has_ended: bool,
    output: Path,
    issues: Sequence[KnownIssue],
) -> EngineVerdict:
    command = shlex.join(["pytest", *session.arguments])
    options = (each for each in session.options if not each.startswith(f"{SET}="))
    asked = Asked(command, session.requirements, Conditions(tuple(options)))
    is_complete = has_ended and session.is_whole
    verdict = verdict_of(session.engine, found, is_complete, made_now(), asked, issues)
    if has_ended:
        with ThreadPoolExecutor(session.jobs) as pool:  # each waits for a process of its own
            verdict = replace(verdict, groups=tuple(pool.map(_with_replays, verdict.groups)))
    path = write_verdict(verdict, output)
    write_index(output)
    _print(verdict, path)
    return verdict


def _with_replays(group: FailureGroup) -> FailureGroup:
    if group.failure is None or group.failure.replay is None:
        return group
    file = group.failure.replay
    return replace(group, replays=tuple(replay_outcome(file) for _ in range(NUM_REPLAYS)))


def replay_outcome(failure_file: str) -> str:
    """Runs a failure file of `--repro` again in a process of its own, and returns the outcome in
    words."""
    command = [*REPLAY, failure_file]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, check=False, timeout=REPLAY_TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"ran for {REPLAY_TIME_LIMIT_S} s"
    if ran.returncode < 0:
        return f"its process was killed by signal {-ran.returncode}"
    return REPLAY_WORDS.get(ran.returncode, f"exit status {ran.returncode}")


def _print(verdict: EngineVerdict, path: Path) -> None:
    broken = f", broken: {', '.join(verdict.broken)}" if verdict.broken else ""
    end = "" if verdict.is_complete else "; INCOMPLETE"
    print(f"{verdict.title}: {len(verdict.held)} promises held{broken}{end}")
    print(f"written: {path}", file=sys.stderr)


@dataclass(frozen=True)
class Session:
    """A run of the suite on one engine, and the folder for what it writes."""

    engine: str
    options: Sequence[str]  # more pytest arguments: models, dtype, -k
    jobs: int
    folder: Path
    requirements: RequirementSet | None = None  # that is scored; it is among the options as well

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def verdict(self) -> Path:
        return self.folder / "verdict.json"

    @property
    def is_whole(self) -> bool:
        """Whether the run, by its own verdict, left out no test: not by -k, -m or the like."""
        return self.verdict.is_file() and VERDICT.read(self.verdict).is_complete

    @property
    def arguments(self) -> list[str]:
        """What a person would type to see the same."""
        return [*SUITE_ARGUMENTS, f"--engine={self.engine}", *self.options]

    def run(self) -> int:
        """Returns the exit status of pytest, whose output goes to stderr. A worker that dies is
        replaced; only its test is lost.
        """
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
