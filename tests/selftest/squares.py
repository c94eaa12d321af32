"""A campaign of numbers, which imports nothing heavy: a process of it starts at once."""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from batchproof.cli.choices import Shard
from batchproof.cli.progress import Progress
from batchproof.records.campaign import Question
from batchproof_lab.found import Found
from batchproof_lab.work import Work
from batchproof_lab.worker_pool import LostTask

QUESTION = Question("squares", {"numbers": (1, 2)}, "abc")


def squared(number: int) -> int:
    time.sleep(0.02)
    return number * number


def killed_at_first(task: tuple[str, int]) -> int:
    """Returns the number. Its process is killed if that is even or the folder does not exist, until a
    file in the folder says that it was."""
    folder, number = Path(task[0]), task[1]
    marker = folder / "killed"
    if not folder.exists() or (number % 2 == 0 and not marker.exists()):
        if folder.exists():
            marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def squares(
    folder: Path, tasks: Any = range(50), function: Any = squared, **changes: Any
) -> Found[int]:
    """Does what is left of the tasks; the outcome of a lost one is -1."""
    options = {"output": folder, "shard": Shard(), "anew": False, "runner": "processes", "jobs": 1}
    found = Found(int)
    progress = Progress("squares", "number", len(tasks))
    work = Work(QUESTION, found, str, function, _outcome, progress)
    work.run(Namespace(**options | changes), 60.0, lambda: tasks, lambda: 0)
    return found


def _outcome(_: object, found: int | LostTask) -> int:
    return -1 if isinstance(found, LostTask) else found
