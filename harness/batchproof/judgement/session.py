"""Runs the conformance suite on one engine, outside this process."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batchproof.cli.progress import Progress
from batchproof.errors import UsageError
from batchproof.places import ROOT, SUITE_ARGUMENTS
from batchproof.records.file_kinds import FileKind
from batchproof.requirements.sets import RequirementSet

ASKED = "asked.json"
SECONDS_BETWEEN_LOOKS = 2.0
TAKES = re.compile(r"(\d+)/(\d+) tests collected|(\d+) tests? collected")


@dataclass(frozen=True)
class SessionAsked:
    """What the folder of a judgement was begun for."""

    engine: str
    arguments: tuple[str, ...]  # of pytest


SESSION = FileKind("judgement to resume", "batchproof.session", 1, SessionAsked)


def _num_lines(journal: Path) -> int:
    """Returns the number of finished tests in a journal; its first line is the head."""
    if not journal.exists():
        return 0
    with journal.open("rb") as file:
        return max(0, sum(1 for _ in file) - 1)


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
        num_done = 0
        with (self.folder / "pytest.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                while True:
                    status = process.poll()
                    num_lines = _num_lines(self.journal)
                    if num_lines > num_done:
                        progress.step(num_lines - num_done)
                        num_done = num_lines
                    if status is not None:
                        return status
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
