"""The latest runs of a trial, and those of them that reproduce a failure."""

from __future__ import annotations

from collections import deque
from itertools import islice

from batchproof.api import Completion
from batchproof.findings.failure import Run, Scene
from batchproof.workload.workloads import Workload

NUM_KEPT_RUNS = 32  # more than any example makes


class RunHistory:
    """The latest `NUM_KEPT_RUNS` runs of all engines, oldest first."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque(maxlen=NUM_KEPT_RUNS)

    def begin(self, run: Run) -> None:
        """Appends a run whose completions are not known yet."""
        self._runs.append(run)

    def end(self, run: Run) -> None:
        """Replaces the last run by the same with its completions."""
        self._runs[-1] = run

    @property
    def last_workload(self) -> Workload:
        """The workload of the last run; an empty one if there was none."""
        return self._runs[-1].workload if self._runs else Workload(())

    def scene_of_workload(self, workload: Workload) -> Scene:
        """Returns the last run of this workload after its engine's earlier ones; if there is none,
        the workload alone."""
        at = next((run for run in reversed(self._runs) if run.workload == workload), None)
        return Scene((Run(0, workload),) if at is None else self._up_to(at))

    def _up_to(self, last: Run) -> tuple[Run, ...]:
        """Returns all runs of the same engine up to this one."""
        end = next(i for i, run in enumerate(self._runs) if run is last)
        return tuple(run for run in islice(self._runs, end + 1) if run.serial == last.serial)

    def scene_of_answers(self, answer: Completion, other: Completion) -> Scene | None:
        """Returns the runs that two compared answers come from; None if one of them comes from no
        run."""
        found = [self._origin(each) for each in (answer, other)]
        if found[0] is None or found[1] is None:
            return None
        return Scene(self._up_to(found[0]), self._up_to(found[1]))

    def _origin(self, answer: Completion) -> Run | None:
        """Returns the latest run that gave the answer, else one whose answer begins with it."""
        given = [(run, c) for run in reversed(self._runs) for c in run.completions]
        whole = (run for run, c in given if c is answer)
        tokens, name = answer.token_ids, answer.request_id
        cut = (r for r, c in given if c.request_id == name and c.token_ids[: len(tokens)] == tokens)
        return next(whole, None) or next(cut, None)
