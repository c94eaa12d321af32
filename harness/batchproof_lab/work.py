"""Works on a campaign in this process and its workers, and writes each outcome to a journal at once.

The journals of a question lie in `journals/` below the output, and are read whenever it is asked again:
by the same command after an interruption, and by the one that adds up all shards. A journal of other
code or another question has another name and is left alone.
"""

from __future__ import annotations

import sys
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.records.campaign import CAMPAIGN, Line, Question, Sitting
from batchproof.records.journal import JournalWriter
from batchproof.records.provenance import made_now
from batchproof_lab.found import Found, Outcome
from batchproof_lab.options import RAY
from batchproof_lab.worker_pool import LostTask, WorkerPool

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_KILLS = 2  # of workers with the same task, which then has that for its outcome


@dataclass
class Work(Generic[Task, Result, Outcome]):
    """A campaign under way. `key` identifies a task; `function` runs in a worker; `outcome_of` says
    what the journal keeps of its result. `size_of` is in the units of the progress.
    """

    question: Question
    found: Found[Outcome]
    key: Callable[[Task], str]
    function: Callable[[Task], Result]
    outcome_of: Callable[[Task, Result | LostTask], Outcome]
    progress: Progress
    size_of: Callable[[Outcome], int] = lambda _: 1
    wanted: int = 0
    _sitting: Sitting | None = field(init=False, default=None)

    def run(
        self,
        arguments: Namespace,
        time_limit_s: float,
        tasks: Callable[[], Iterable[Task | None]],
        finish: Callable[[], int],
    ) -> int:
        """Reads what is known, then does the tasks that have no outcome, again and again until
        `tasks` has no other. Returns what `finish` returns, which writes the result, also if the work
        is stopped; 0 for a shard, which has none.

        Raises `UsageError` if another process works on the same shard.
        """
        shard = arguments.shard
        folder = choices.writable(arguments.output / "journals")
        name = f"{self.question.campaign}-{self.question.digest}"
        own = folder / f"{name}-{shard.index}of{shard.number}.jsonl"
        if arguments.anew:
            for path in [own] if shard.number > 1 else list(folder.glob(f"{name}-*.jsonl")):
                path.unlink(missing_ok=True)
        with ExitStack() as stack:
            stack.callback(self.progress.close)
            journal = stack.enter_context(CAMPAIGN.append_to(own, self.question))
            self.found.read(folder.glob(f"{name}-*.jsonl"), self.question)
            self.progress.step(sum(map(self.size_of, self.found.outcomes.values())), f"from {folder}")
            try:
                with pool_of(arguments.runner, arguments.jobs, time_limit_s) as pool:
                    while self._pass(pool, tasks(), journal, str(shard)):
                        pass
            finally:
                self.progress.close()
                exit_code = finish() if shard.number == 1 else 0
            if shard.number > 1:
                print(f"written: {own}, to merge with the other shards", file=sys.stderr)
            return exit_code

    def _pass(
        self, pool: WorkerPool, tasks: Iterable[Task | None], journal: JournalWriter, shard: str
    ) -> bool:
        """Does those that have no outcome; returns whether there were any."""
        is_any, known = False, self.found.outcomes
        for task, result in pool.run(
            self.function, (each for each in tasks if each is None or self.key(each) not in known)
        ):
            is_any = True
            if self._sitting is None:
                self._sitting = Sitting(uuid.uuid4().hex[:12], shard, made_now(), self.wanted)
                journal.append(Line(sitting=self._sitting))
            self._keep(task, result, journal)
        return is_any

    def _keep(self, task: Task, result: Result | LostTask, journal: JournalWriter) -> None:
        """Writes the outcome of a task. One whose worker was killed from outside has none yet: it is
        given to another worker, once, and the journal says so."""
        assert self._sitting is not None, "a line belongs to a sitting"
        key, found = self.key(task), self.found
        if isinstance(result, LostTask) and result.is_killed:
            journal.append(Line(key, killed=result.why))
            found.kills[key] += 1
            if found.kills[key] < MOST_KILLS:
                print(f"{key}: {result.why}; another worker does it", file=sys.stderr)
                return
        outcome = self.outcome_of(task, result)
        journal.append(Line(key, outcome))
        found.outcomes[key], found.sittings[key] = outcome, self._sitting
        self.progress.step(self.size_of(outcome), key)


def pool_of(runner: str, num_workers: int, time_limit_s: float) -> WorkerPool:
    """Returns the workers. Raises `UsageError` if Ray is asked for and not installed."""
    if runner == RAY:
        from batchproof_lab.ray_pool import RayPool  # noqa: PLC0415 - an extra

        return RayPool(num_workers, time_limit_s)
    return WorkerPool(num_workers, time_limit_s)
