"""A campaign of numbers, which imports nothing heavy: a process of it starts at once."""

import os
import signal
import time
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from batchproof.cli.progress import Progress
from batchproof_lab.campaign import Campaign, CampaignState, Question

QUESTION = Question("squares", "numbers 1, 2", "abc")


def squared(number: int) -> int:
    time.sleep(0.02)
    return number * number


def killed_at_first(task: tuple[str, int]) -> int:
    """Returns the number. The first process that is given an even one is killed."""
    marker, number = Path(task[0], "killed"), task[1]
    if number % 2 == 0 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@dataclass(frozen=True)
class Number:
    """A task."""

    task: Any

    @property
    def key(self) -> str:
        return str(self.task)


def squares(folder: Path, tasks: Any = range(50), function: Any = squared) -> CampaignState[int]:
    """Does what is left of the tasks; the outcome of a lost one is -1."""
    options = Namespace(output=folder, jobs=1)
    state = CampaignState(int)
    progress = Progress("squares", "number", len(tasks))
    campaign = Campaign(QUESTION, state, partial(_of_task, function), lambda *_: -1, progress)
    numbers = [Number(each) for each in tasks]
    campaign.run(options, lambda: numbers, lambda: 0)
    return state


def _of_task(function: Any, number: Number) -> int:
    return function(number.task)
