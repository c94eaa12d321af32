"""What a reproduction script printed, on which versions, kept as text in `outputs/`.

    # ctranslate2 4.8.5, torch 2.13.0
    # Python 3.11.7, Linux x86_64
    # 2026-11-23, exit status 1
    # script sha256 9b1c...
    (its stdout)

The digest tells a recording of another version of the script.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.file_kinds import replace_text

TIME_LIMIT_S = 300.0
REPRODUCED = 1  # the scripts' own exit status; an exception that nothing caught has another
VERSIONS = """
import platform, sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name.partition('[')[0])}" for name in sys.argv[1:]))
print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
"""
RUN = """
import runpy, sys, traceback
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except Exception:
    traceback.print_exc()
    sys.exit(3)
"""


@dataclass(frozen=True)
class Recording:
    """A script's output. `status` is its exit status, or None if it ran into the time limit."""

    packages: str
    platform: str
    date: str
    status: int | None
    digest: str
    output: str

    @property
    def is_reproduced(self) -> bool:
        """Returns whether the script found the defect."""
        return self.status == REPRODUCED

    def write(self, path: Path) -> None:
        """Writes it. Raises `UsageError`."""
        status = "ended by the time limit" if self.status is None else f"exit status {self.status}"
        head = (self.packages, self.platform, f"{self.date}, {status}", f"script sha256 {self.digest}")
        path.parent.mkdir(exist_ok=True)
        replace_text(path, "".join(f"# {each}\n" for each in head) + self.output)


def recording_of(script: Path) -> Path:
    """Returns where the output of a script is kept."""
    return script.parent / "outputs" / f"{script.stem}.txt"


def digest_of(script: Path) -> str:
    return hashlib.sha256(script.read_bytes()).hexdigest()


def read_recording(script: Path) -> Recording:
    """Returns the recorded output. Raises `UsageError` if there is none, or if it is one of another
    version of the script.
    """
    path = recording_of(script)
    try:
        *head, output = path.read_text(encoding="utf-8").split("\n", 4)
        packages, platform, when, digest = (each.removeprefix("# ") for each in head)
        day, _, status = when.partition(", ")
    except (OSError, ValueError) as error:
        raise UsageError(f"{script.name} has no recorded output {path}: {error}") from error
    code = int(status.split()[-1]) if status.startswith("exit status") else None
    found = Recording(packages, platform, day, code, digest.split()[-1], output)
    if found.digest != digest_of(script):
        raise UsageError(f"{path} is the output of another version of {script.name}: record it again")
    return found


def record(script: Path, python: str, packages: Sequence[str]) -> Recording:
    """Runs the script and returns what it printed. Raises `UsageError` if a package is missing."""
    try:
        told = subprocess.run(
            [python, "-c", VERSIONS, *packages], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"{python} lacks one of {', '.join(packages)}") from error
    installed, platform = told.stdout.splitlines()
    command, status = [python, "-u", "-c", RUN, str(script)], None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
        status, output = ran.returncode, ran.stdout
        print(ran.stderr if status not in (0, REPRODUCED) else "", file=sys.stderr, end="")
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
    return Recording(installed, platform, str(date.today()), status, digest_of(script), output)
