"""Runs the conformance suite on one engine, outside this process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.campaign.modules import CONFORMANCE
from harness.campaign.progress import Progress
from harness.plugin.journal import entries
from harness.provenance import ROOT

SECONDS_BETWEEN_LOOKS = 0.5
TAKES = re.compile(r"(\d+)/(\d+) tests collected|(\d+) tests? collected")


@dataclass(frozen=True)
class Session:
    """What is asked, and where its traces go."""

    engine: str
    options: Sequence[str]  # more pytest arguments: models, dtype, -k
    jobs: int
    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def scripts(self) -> Path:
        """One for every failure, with the models; the verdict keeps those it tells."""
        return self.folder / "scripts"

    @property
    def arguments(self) -> list[str]:
        """What a person would type to see the same."""
        return [str(CONFORMANCE.relative_to(ROOT)), f"--engine={self.engine}", *self.options]

    def count(self) -> int:
        """Tests in all. Raises `SystemExit` with pytest's own words if it refuses the arguments."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            *self.arguments,
            "--collect-only",
            "-q",
            "-p",
            "no:xdist",
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR: ")]
            raise SystemExit(errors[0].removeprefix("ERROR: ") if errors else ran.stdout + ran.stderr)
        matches = TAKES.findall(ran.stdout)
        return int(next(filter(None, (matches[-1][0], matches[-1][2]))))

    def run(self, progress: Progress) -> int:
        """Returns the status of pytest. A worker that dies is replaced; only its test is lost."""
        command = [sys.executable, "-m", "pytest", *self.arguments, "-q", "-n", str(self.jobs)]
        command += [f"--journal={self.journal}", f"--repro={self.scripts}"]
        num_told = 0
        with (self.folder / "pytest.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                while True:
                    status = process.poll()
                    num_told = self._tell(progress, num_told)
                    if status is not None:
                        return status
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()

    def _tell(self, progress: Progress, num_told: int) -> int:
        num_broken, count = 0, 0
        for entry in entries(self.journal):
            count += 1
            num_broken += entry["outcome"] == "failed"
        if count > num_told:
            progress.step(count - num_told, note=f"{num_broken} failed")
        return count
