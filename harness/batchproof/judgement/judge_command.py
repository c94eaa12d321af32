"""`batchproof judge ENGINE...`: runs the whole suite on each engine and writes a page about it."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.option_names import NO_CONFIG
from batchproof.cli.progress import Progress
from batchproof.errors import UsageError
from batchproof.judgement.output import running_folder, write_index, write_verdict
from batchproof.places import ROOT, SUITE_ARGUMENTS
from batchproof.plugin.scoring import SET
from batchproof.records.file_kinds import FileKind
from batchproof.records.journal import entries, num_new_entries
from batchproof.records.provenance import made_now
from batchproof.records.verdict import Conditions, EngineVerdict, FailureGroup
from batchproof.requirements.issues import DEFAULT_ISSUES, KnownIssue, read_issues
from batchproof.requirements.sets import RequirementSet, load
from batchproof.requirements.verdict_of_journal import Asked, verdict_of

DEFAULT_OUTPUT = ROOT / "results" / "engines"
ENDED = (0, 1, 5)  # pytest's statuses of a session that ran to its end; 5: nothing was left to run

REPLAY = (sys.executable, "-m", "batchproof", "replay")
NUM_REPLAYS = 2
REPLAY_TIME_LIMIT_S = 300
REPLAY_WORDS = {0: "not reproduced", 1: "reproduced", 2: "could not be run"}  # by exit status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"engines to judge, as for pytest --engine (default: those of {OWN})")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a judgement that was stopped; otherwise start over, since an engine may have "
        "changed unseen",
    )
    parser.add_argument(
        SET,
        metavar="SET",
        help="judge by a dated set of requirements, on its models (default: all tests on all models)",
    )
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help="more arguments of pytest in one text, such as '--dtype=bfloat16 --model=gpt2-hash -k P5'",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=DEFAULT_ISSUES,
        metavar="FILE",
        help="what is known of failures (default: results/engines/findings.yaml)",
    )
    choices.add_common(parser)
    parser.set_defaults(output=DEFAULT_OUTPUT)


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
    session = _session(engine, arguments, running_folder(output, engine))
    num_tests = session.count()  # count first, so that refused arguments leave no journal behind
    if arguments.resume:
        session.require_same_as_before()
    else:
        session.start_over()
    progress = Progress(engine, "test", num_tests, arguments.progress)
    is_complete = False
    try:
        is_complete = session.run(progress) in ENDED
    finally:  # whatever stopped it: what is done is written
        progress.close()
        verdict = _conclude(session, is_complete, output, issues)
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
    if find():  # a page is about the whole suite, and expects no failure
        options.insert(0, NO_CONFIG)
    return Session(engine, options, arguments.jobs, folder, asked)


def _conclude(
    session: Session, is_complete: bool, output: Path, issues: Sequence[KnownIssue]
) -> EngineVerdict:
    command = shlex.join(["pytest", *session.arguments])
    options = (each for each in session.options if not each.startswith(f"{SET}="))
    asked = Asked(command, session.requirements, Conditions(tuple(options)))
    found = entries(session.journal)
    verdict = verdict_of(session.engine, found, is_complete, made_now(), asked, issues)
    if is_complete:
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


ASKED = "asked.json"
SECONDS_BETWEEN_LOOKS = 2.0
TAKES = re.compile(r"(\d+)/(\d+) tests collected|(\d+) tests? collected")


@dataclass(frozen=True)
class SessionAsked:
    """What the folder of a judgement was begun for."""

    engine: str
    arguments: tuple[str, ...]  # of pytest


SESSION = FileKind("judgement to resume", "batchproof.session", 1, SessionAsked)


@dataclass(frozen=True)
class Session:
    """What is asked, and where its files are written."""

    engine: str
    options: Sequence[str]  # more pytest arguments: models, dtype, -k
    jobs: int
    folder: Path
    requirements: RequirementSet | None = None  # that is scored; it is among the options as well

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def failures(self) -> Path:
        """The folder with a file for each failure; the verdict keeps those that it shows."""
        return self.folder / "failures"

    @property
    def arguments(self) -> list[str]:
        """What a person would type to see the same."""
        return [*SUITE_ARGUMENTS, f"--engine={self.engine}", *self.options]

    def start_over(self) -> None:
        """Deletes what an earlier run has left. Raises `UsageError` if the folder is not that of a
        judgement.
        """
        if self.folder.exists():
            if not (self.folder / ASKED).exists():
                raise UsageError(
                    f"{self.folder} is no folder of a judgement, and is not deleted: give another "
                    f"--output"
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        SESSION.write(self._asked, self.folder / ASKED)

    def require_same_as_before(self) -> None:
        """Raises `UsageError` if there is nothing to resume, or if something else was asked."""
        path = self.folder / ASKED
        if not path.exists():
            raise UsageError(
                f"there is no judgement of {self.engine!r} to resume in {self.folder.parent}"
            )
        before = SESSION.read(path)
        if before != self._asked:
            raise UsageError(
                f"the judgement of {self.engine!r} was begun with {shlex.join(before.arguments)}; "
                f"it cannot be resumed with {shlex.join(self.arguments)}"
            )

    @property
    def _asked(self) -> SessionAsked:
        return SessionAsked(self.engine, tuple(self.arguments))

    @property
    def _pytest(self) -> list[str]:
        return [sys.executable, "-m", "pytest", *self.arguments]

    def count(self) -> int:
        """Returns the number of tests. Raises `UsageError` with pytest's own words if it refuses the
        arguments.
        """
        command = [*self._pytest, "--collect-only", "-q", "-p", "no:xdist"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode < 0:
            name = signal.Signals(-ran.returncode).name
            raise UsageError(f"pytest was killed by {name} when {self.engine!r} was first built")
        if ran.returncode != 0:
            errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR: ")]
            output = " ".join((ran.stdout + ran.stderr).split())
            words = f"pytest ended with status {ran.returncode}: {output or 'no output'}"
            raise UsageError(errors[0].removeprefix("ERROR: ") if errors else words)
        matches = TAKES.findall(ran.stdout)
        return int(next(filter(None, (matches[-1][0], matches[-1][2]))))

    def run(self, progress: Progress) -> int:
        """Runs what remains and returns the exit status of pytest. A worker that dies is replaced;
        only its test is lost.
        """
        command = [*self._pytest, "-q", "-n", str(self.jobs)]
        command += [f"--journal={self.journal}", f"--repro={self.failures}"]
        num_finished = num_new_entries(self.journal)
        with (self.folder / "pytest.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                while True:
                    status = process.poll()
                    if num_tests := next(num_finished):
                        progress.step(num_tests)
                    if status is not None:
                        return status
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
