"""A campaign of numbers, which imports nothing heavy: a process of it starts at once."""

import os
import signal
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchproof.cli.progress import Progress
from batchproof_lab.campaign import Campaign, CampaignState, Question

QUESTION = Question("squares", "numbers 1, 2", "abc")


@dataclass(frozen=True)
class Number:
    """A task."""

    number: int
    folder: Path

    @property
    def key(self) -> str:
        return str(self.number)


def squared(task: Number) -> int:
    time.sleep(0.02)
    return task.number * task.number


def killed_at_first(task: Number) -> int:
    """Returns the number. The first process that is given an even one is killed."""
    marker = task.folder / "killed"
    if task.number % 2 == 0 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task.number


def squares(
    folder: Path, numbers: Sequence[int] = range(50), function: Callable[[Number], int] = squared
) -> CampaignState[int]:
    """Does what is left of the numbers; the outcome of a lost one is -1."""
    state, tasks = CampaignState(int), [Number(each, folder) for each in numbers]
    progress = Progress("squares", "number", len(tasks))
    campaign = Campaign(QUESTION, state, function, lambda *_: -1, progress)
    campaign.run(Namespace(output=folder, jobs=1), lambda: tasks, lambda: 0)
    return state
