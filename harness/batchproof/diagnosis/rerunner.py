"""Reruns the workloads of a failure, unchanged or with one thing changed, on fresh engines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from batchproof.api import Capability, Completion, Engine, EngineConfig, StepRecord
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.trace import check_accounting, check_positions
from batchproof.diagnosis.cell_table import plain_schedule
from batchproof.errors import EngineHang
from batchproof.findings.finding import Finding
from batchproof.run.serving import serve
from batchproof.run.time_limit import time_limit
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

RERUN_TIME_LIMIT_S = 5.0
HANG_TIME_LIMIT_S = 1.0


class OutOfTimeError(Exception):
    """Raised when the diagnosis has used up its time."""


@dataclass(frozen=True, slots=True)
class Call:
    """One workload of a rerun, its completions, and the part of the trace that it added."""

    workload: Workload
    completions: tuple[Completion, ...]
    trace: tuple[StepRecord, ...]

    def completion(self, request_id: str) -> Completion | None:
        """Returns the first completion with this id, or None."""
        return next((c for c in self.completions if c.request_id == request_id), None)

    def schedule(self) -> Sequence[StepRecord]:
        """Returns the trace, or the simplest schedule within the limits if there is none."""
        return self.trace or plain_schedule(self.workload, self.completions)


class Rerunner:
    """Runs workloads on fresh engines until `seconds` have passed."""

    def __init__(self, trial: Trial, seconds: float) -> None:
        self.trial = trial
        self._end = time.monotonic() + seconds

    def check_time(self) -> None:
        """Raises `OutOfTimeError` once the time is used up."""
        if time.monotonic() > self._end:
            raise OutOfTimeError

    def run(self, calls: Sequence[Workload], seconds: float = RERUN_TIME_LIMIT_S) -> list[Call] | None:
        """Runs all workloads on one fresh engine.

        Returns one `Call` for each; None if the engine hangs for `seconds`, raises or returns something
        unreadable. Raises `OutOfTimeError`.
        """
        self.check_time()
        config = replace(calls[-1].config, return_logits=self.trial.has_logits)
        try:
            engine = self._build(config)
            try:
                return [self._call(engine, each, seconds) for each in calls]
            finally:
                self.trial.close(engine)
        except (EngineHang, Exception):
            return None

    def conduct_up_to_hang(self, calls: Sequence[Workload]) -> Finding | None:
        """Returns the first rule of the trace that is broken before the last call hangs.

        Returns None if no call hangs, no rule is broken, or the engine has no trace. Raises
        `OutOfTimeError`.
        """
        self.check_time()
        if Capability.TRACING not in self.trial.capabilities:
            return None
        num_before = 0
        earlier: list[Computed] = []
        try:
            engine = self._build(calls[-1].config)
        except (EngineHang, Exception):
            return None
        try:
            for each in calls:
                num_before = len(self._trace(engine))
                outcome = serve(engine, each, HANG_TIME_LIMIT_S)
                done = ComputedPrefixes(each, outcome.completions)
                earlier += done.note_all(self._trace(engine)[num_before:]).computed
        except EngineHang:
            records = self._trace(engine)[num_before:]
        except Exception:
            return None
        else:
            return None
        can_share = may_share(calls[-1].config, self.trial.capabilities)
        prefixes = ComputedPrefixes(calls[-1], (), earlier) if can_share else None
        try:
            check_positions(records, calls[-1], prefixes)
            check_accounting(records, calls[-1], is_idle_at_end=False)
        except BrokenPromise as broken:
            return broken.finding
        return None

    def _build(self, config: EngineConfig) -> Engine:
        with time_limit(RERUN_TIME_LIMIT_S, "building the engine"):
            return self.trial.spec.factory(self.trial.subject.model, config)

    def _call(self, engine: Engine, workload: Workload, seconds: float) -> Call:
        num_before = len(self._trace(engine))
        outcome = serve(engine, workload, seconds)
        return Call(workload, outcome.completions, tuple(self._trace(engine))[num_before:])

    def _trace(self, engine: Engine) -> Sequence[StepRecord]:
        has_trace = Capability.TRACING in self.trial.capabilities
        return engine.trace if has_trace else ()  # type: ignore[attr-defined]


def same_answer(a: Completion | None, b: Completion | None) -> bool:
    """Returns whether two answers are equal, their logits bit for bit where both have some."""
    if a is None or b is None:
        return a is b
    if (a.token_ids, a.finish_reason) != (b.token_ids, b.finish_reason):
        return False
    if a.logits is None or b.logits is None:
        return True
    is_alike = a.logits.shape == b.logits.shape
    return is_alike and torch.allclose(a.logits, b.logits, rtol=0, atol=0, equal_nan=True)
