"""Checks that an engine does not disturb the others: model, torch's switches, CPU cores."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

from batchproof.bench.processes import CpuMeter
from batchproof.bench.timed_engine import TimedEngine
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.environment import require_same, shared_of
from batchproof.findings.finding_text import first_line
from batchproof.models.catalogue import ModelUnderTest
from batchproof.run.laboratory import Laboratory

NUM_LISTENS = 3
LISTEN_S = 0.02


class InterferenceMonitor:
    """The model and torch's switches must stay as they were when the model was loaded, before any
    engine. Where process time is measured, nothing may compute between rounds: no thread, nor any
    process that this one has started."""

    def __init__(self, lab: Laboratory, subject: ModelUnderTest, listens: bool) -> None:
        self._model = subject.model
        self._before = lab.watch.as_loaded(subject)
        self._listens = listens

    def harm(self) -> str | None:
        """Returns what is wrong now, or None."""
        try:
            require_same(self._before, shared_of(self._model), "since it was loaded")
        except BrokenPromise as error:
            return first_line(error.finding)
        return self.noise()

    def noise(self) -> str | None:
        """Returns whether a thread or process computes unasked, in words, or None: the check that is
        cheap enough between laps."""
        is_busy = self._listens and _is_process_busy()
        return "something computes although no request is being served" if is_busy else None


def stopped_for(harm: str | None, culprit: TimedEngine | None, engines: Sequence[TimedEngine]) -> bool:
    """Voids the figures of all engines if there is harm, and returns whether there is. Only the
    culprit, if known, is INVALID; the others are UNVERIFIED."""
    if harm is None:
        return False
    if culprit is not None:
        culprit.accuse(harm)
    who = "an engine of this run" if culprit is None else f"engine {culprit.name!r}"
    for each in engines:
        each.accuse(f"{who} has done harm, so nothing here counts: {harm}", is_blameless=True)
    return True


def _is_process_busy() -> bool:
    """True only if every sample shows work: the tail of earlier work ends, a busy thread does not."""
    return all(_works_while_we_sleep() for _ in range(NUM_LISTENS))


def _works_while_we_sleep() -> bool:
    meter = CpuMeter()
    sleep(LISTEN_S)
    meter.stop()
    return meter.seconds() > LISTEN_S / 4  # a busy thread may share its core
