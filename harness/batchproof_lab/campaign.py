"""A campaign: independent tasks in worker processes, of which each outcome goes to a journal at once.

The journal of a question lies in `journals/` below the output, and is read whenever it is asked again,
as after an interruption. That of other code or another question has another name and is left alone.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode
from batchproof.records.file_kinds import FileKind
from batchproof.records.journal import JournalKind, JournalWriter
from batchproof.records.provenance import Provenance, made_now
from batchproof_lab.worker_pool import LostTask, WorkerPool

TASK_LIMIT_S = 3600.0  # far beyond any session of the suite: a worker that hangs is given up


class HasKey(Protocol):
    """`key` identifies a task within its question."""

    @property
    def key(self) -> str: ...


Task = TypeVar("Task", bound=HasKey)
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Question:
    """What a campaign asks, and the digest of the code it asks of: together they determine each task
    and its outcome."""

    campaign: str
    asked: str
    code: str

    @property
    def digest(self) -> str:
        """What the journal of this question has in its name."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Line:
    """A sitting that begins (a process that works on the campaign), or the outcome of a task."""

    key: str = ""
    outcome: object = None
    sitting: Provenance | None = None


CAMPAIGN = JournalKind(FileKind("journal", "batchproof.campaign", 3, Question), Line)


@dataclass
class CampaignState(Generic[Outcome]):
    """What is known so far: each finished task once."""

    kind: type[Outcome]
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by the key of the task
    sittings: list[Provenance] = field(default_factory=list)
    sitting_of: dict[str, int] = field(default_factory=dict)  # by the same key: a place in `sittings`

    def read(self, path: Path) -> None:
        """Adds what a journal holds. Raises `UsageError` for one that is damaged."""
        for line in CAMPAIGN.read(path)[1]:
            if line.sitting is not None:
                self.sittings.append(line.sitting)
                continue
            try:
                self.add(line.key, decode(self.kind, line.outcome))
            except DecodeError as error:
                where = f"journal '{path}' is damaged in task {line.key!r}"
                raise UsageError(f"{where}: {error}") from None

    def add(self, key: str, outcome: Outcome) -> None:
        """Adds an outcome of the latest sitting."""
        self.outcomes[key] = outcome
        self.sitting_of[key] = len(self.sittings) - 1

    def made(self) -> Provenance:
        """Where the outcomes come from: the one sitting that made them, or all of them."""
        if len(self.sittings) == 1:
            return self.sittings[0]
        counts = Counter(self.sitting_of.values())
        lines = (
            f"{counts[place]} tasks, from {each.date} on {each.machine}, commit {each.commit}"
            for place, each in enumerate(self.sittings)
        )
        return replace(made_now(), sittings=tuple(lines))


@dataclass
class Campaign(Generic[Task, Outcome]):
    """A campaign under way. `function` runs in a worker; `lost_outcome` is that of a task whose worker
    raised, hung or died; `size_of` is in the units of the progress."""

    question: Question
    state: CampaignState[Outcome]
    function: Callable[[Task], Outcome]
    lost_outcome: Callable[[Task, LostTask], Outcome]
    progress: Progress
    size_of: Callable[[Outcome], int] = lambda _: 1
    _is_begun: bool = field(init=False, default=False)  # its sitting is in the journal

    def run(
        self,
        arguments: argparse.Namespace,
        tasks: Callable[[], Iterable[Task]],
        finish: Callable[[], int],
    ) -> int:
        """Does the tasks that have no outcome, again and again until `tasks` has no other. Returns
        what `finish` returns, which writes the result, also if the work is stopped. Raises `UsageError`
        if another process writes the journal."""
        folder = choices.writable(arguments.output / "journals")
        path = folder / f"{self.question.campaign}-{self.question.digest}.jsonl"
        with closing(CAMPAIGN.append_to(path, self.question)) as journal:
            self.state.read(path)
            known = self.state.outcomes.values()
            self.progress.step(sum(map(self.size_of, known)), f"from {path}")
            try:
                with WorkerPool(arguments.jobs, TASK_LIMIT_S) as pool:
                    while self._pass(pool, tasks(), journal):
                        pass
            finally:
                self.progress.close()
                exit_code = finish()
        return exit_code

    def _pass(self, pool: WorkerPool, tasks: Iterable[Task], journal: JournalWriter) -> bool:
        is_any, known = False, self.state.outcomes
        waiting = (each for each in tasks if each.key not in known)
        for task, result in pool.run(self.function, waiting):
            if not self._is_begun:
                self.state.sittings.append(made_now())
                journal.append(Line(sitting=self.state.sittings[-1]))
            is_any = self._is_begun = True
            if isinstance(result, LostTask):  # in no journal: the same command tries it again
                outcome = self.lost_outcome(task, result)
            else:
                outcome = result
                journal.append(Line(task.key, outcome))
            self.state.add(task.key, outcome)
            self.progress.step(self.size_of(outcome), task.key)
        return is_any
