"""`batchproof judge ENGINE...`: runs the whole suite on each engine and writes a page about it."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.errors import UsageError
from batchproof.judgement.output import folder_of, write_index, write_verdict
from batchproof.judgement.suite_session import ENDED, Session, add_common, suite_options
from batchproof.places import ROOT
from batchproof.records.journal import JournalEntry, entries
from batchproof.records.verdict import EngineVerdict, FailureGroup
from batchproof.requirements.issues import KnownIssue, read_issues

REPLAY = (sys.executable, "-m", "batchproof", "replay")
NUM_REPLAYS = 2
REPLAY_TIME_LIMIT_S = 300
REPLAY_WORDS = {0: "not reproduced", 1: "reproduced", 2: "could not be run"}  # by exit status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"engines to judge, as for pytest --engine (default: those of {OWN})")
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help="more arguments of pytest in one text, such as '--dtype=bfloat16 -k prefix'",
    )
    add_common(parser)


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
        options = suite_options(engine, arguments.pytest)
        session = Session(engine, options, arguments.jobs, Path(folder))
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


def _conclude(
    session: Session,
    found: Sequence[JournalEntry],
    has_ended: bool,
    output: Path,
    issues: Sequence[KnownIssue],
) -> EngineVerdict:
    verdict = session.verdict_of(found, has_ended, issues)
    if has_ended:
        with ThreadPoolExecutor(session.jobs) as pool:  # each waits for a process of its own
            verdict = replace(verdict, groups=tuple(pool.map(_with_replays, verdict.groups)))
    path = write_verdict(verdict, folder_of(verdict, output))
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
