"""Does an engine leave alone what its rivals are measured with: model, torch's switches, cores?"""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time, sleep

from batchproof.bench.contender import Contender
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.environment import require_same, shared_of
from batchproof.models.catalogue import ModelUnderTest
from batchproof.run.laboratory import Laboratory
from batchproof.wording.findings import first_line

NUM_LISTENS = 3
LISTEN_S = 0.02


class Watch:
    """The model and torch's switches must be as they were when it was loaded, before any engine; and
    nobody may compute unasked, where this process's own time is what counts."""

    def __init__(self, lab: Laboratory, subject: ModelUnderTest, listens: bool) -> None:
        self._model = subject.model
        self._before = lab.as_loaded(subject.name)
        self._listens = listens

    def harm(self) -> str | None:
        """What is wrong now, in words."""
        try:
            require_same(self._before, shared_of(self._model), "since it was loaded")
        except BrokenPromise as error:
            return first_line(error.finding)
        return self.noise()

    def noise(self) -> str | None:
        """The cheap part, between laps."""
        is_busy = self._listens and _is_process_busy()
        return "a thread goes on working when nothing is asked of it" if is_busy else None


def stop_for(harm: str, culprit: Contender | None, contenders: Sequence[Contender]) -> None:
    """No figure is worth anything from here on; only who did it is INVALID."""
    if culprit is not None:
        culprit.accuse(harm)
    who = "an engine of this run" if culprit is None else f"engine {culprit.name!r}"
    for each in contenders:
        each.accuse(f"{who} has done harm, so nothing here counts: {harm}", is_blameless=True)


def _is_process_busy() -> bool:
    """Whoever goes on working does so each time we listen; the end of something does not."""
    return all(_works_while_we_sleep() for _ in range(NUM_LISTENS))


def _works_while_we_sleep() -> bool:
    before = process_time()
    sleep(LISTEN_S)
    return process_time() - before > LISTEN_S / 4  # it may have to share its core
