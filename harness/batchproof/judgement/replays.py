"""Runs failure files that `--repro` has written again, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from batchproof.places import ROOT

REPLAY = (sys.executable, "-m", "batchproof", "replay")
NUM_REPLAYS = 2
TIME_LIMIT_S = 300
WORDS = {0: "not reproduced", 1: "reproduced", 2: "could not be run"}


def replayed(failure_file: Path) -> tuple[str, ...]:
    """Returns the outcome of each run in words."""
    return tuple(_replayed_once(failure_file) for _ in range(NUM_REPLAYS))


def _replayed_once(failure_file: Path) -> str:
    try:
        ran = subprocess.run(
            [*REPLAY, str(failure_file)],
            cwd=ROOT,
            capture_output=True,
            check=False,
            timeout=TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"ran for {TIME_LIMIT_S} s"
    if ran.returncode < 0:
        return f"its process was killed by signal {-ran.returncode}"
    return WORDS.get(ran.returncode, f"exit status {ran.returncode}")
