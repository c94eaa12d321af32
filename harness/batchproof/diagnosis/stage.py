"""Doing it again: the scene of a failure, as it was or with one thing changed, on a fresh engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    StepRecord,
)
from batchproof.checks.answers import check_structure, check_tokens
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.ledger import Ledger
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.trace import check_accounting, check_positions
from batchproof.diagnosis.tape import plain_schedule
from batchproof.errors import EngineHang
from batchproof.findings.finding import Finding
from batchproof.oracle.oracle import centred
from batchproof.run.serving import serve
from batchproof.run.time_limit import time_limit
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

RERUN_TIME_LIMIT_S = 5.0
HANG_TIME_LIMIT_S = 1.0


class OutOfTimeError(Exception):
    """The diagnosis has used up its seconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a play and what came of it."""

    workload: Workload
    completions: tuple[Completion, ...]
    trace: tuple[StepRecord, ...]

    def completion(self, request_id: str) -> Completion | None:
        return next((c for c in self.completions if c.request_id == request_id), None)

    def schedule(self) -> Sequence[StepRecord]:
        return self.trace or plain_schedule(self.workload, self.completions)


@dataclass(frozen=True, slots=True)
class Symptom:
    """An answer that is not the right one; `step`: the first wrong output."""

    call: int
    request: Request
    step: int
    is_content: bool  # wrong tokens or logits, as against a wrong length or reason


class Stage:
    """Plays workloads on fresh engines until the time is up."""

    def __init__(self, trial: Trial, seconds: float) -> None:
        self.trial = trial
        self._end = time.monotonic() + seconds

    def check_time(self) -> None:
        """Raises `OutOfTimeError`."""
        if time.monotonic() > self._end:
            raise OutOfTimeError

    def play(self, calls: Sequence[Workload], seconds: float = RERUN_TIME_LIMIT_S) -> list[Call] | None:
        """All calls on one fresh engine; None if one hangs for `seconds`, raises or cannot be read."""
        self.check_time()
        config = replace(calls[-1].config, return_logits=self.trial.has_logits)
        try:
            with time_limit(RERUN_TIME_LIMIT_S, "building the engine"):
                engine = self.trial.spec.factory(self.trial.subject.model, config)
            try:
                return [self._call(engine, each, seconds) for each in calls]
            finally:
                self.trial.close(engine)
        except (EngineHang, Exception, SystemExit):
            return None

    def conduct_up_to_hang(self, calls: Sequence[Workload]) -> Finding | None:
        """The first rule of the trace that is broken before the last call hangs."""
        self.check_time()
        if Capability.TRACING not in self.trial.capabilities:
            return None
        engine = self.trial.spec.factory(self.trial.subject.model, calls[-1].config)
        num_before = 0
        earlier: list[Computed] = []
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

    def _call(self, engine: Engine, workload: Workload, seconds: float) -> Call:
        num_before = len(self._trace(engine))
        outcome = serve(engine, workload, seconds)
        return Call(workload, outcome.completions, tuple(self._trace(engine))[num_before:])

    def _trace(self, engine: Engine) -> Sequence[StepRecord]:
        has_trace = Capability.TRACING in self.trial.capabilities
        return engine.trace if has_trace else ()  # type: ignore[attr-defined]

    def is_bad(self, request: Request) -> bool:
        """Has no right answer."""
        return Limits.of(self.trial.subject.model, EngineConfig()).refusal(request) is not None

    def symptoms(self, calls: Sequence[Call]) -> list[Symptom]:
        """Every wrong answer, in the order of calls and requests."""
        found = []
        for number, call in enumerate(calls):
            completions = {each.request_id: each for each in call.completions}
            for request in call.workload.requests:
                completion = completions.get(request.request_id)
                symptom = completion and self._symptom(number, request, completion)
                if symptom:
                    found.append(symptom)
        return found

    def _symptom(self, call: int, request: Request, completion: Completion) -> Symptom | None:
        if completion.finish_reason is FinishReason.ERROR or self.is_bad(request):
            return None
        wrong = self._first_wrong(request, completion)
        if wrong is not None:
            return Symptom(call, request, wrong, is_content=True)
        is_aborted = completion.finish_reason is FinishReason.ABORTED
        if not is_aborted and self._ends_wrongly(request, completion):
            step = min(len(completion.token_ids), request.max_new_tokens)
            return Symptom(call, request, step, is_content=False)
        return None

    def _first_wrong(self, request: Request, completion: Completion) -> int | None:
        """The first output whose token or logits no rounding explains."""
        answer = replace(completion, token_ids=tuple(completion.token_ids)[: request.max_new_tokens])
        places = [self._first_off(request, completion)]
        try:
            check_tokens(request, answer, self.trial.oracle, Ledger())
        except BrokenPromise as broken:
            places.append(broken.finding.step or 0)
        return min((place for place in places if place is not None), default=None)

    def _ends_wrongly(self, request: Request, completion: Completion) -> bool:
        logits, tokens = completion.logits, completion.token_ids
        try:
            check_structure(request, completion)
        except BrokenPromise:
            return True
        return logits is not None and len(logits) != len(tokens)

    def _first_off(self, request: Request, completion: Completion) -> int | None:
        """The first output whose logits are further from float64 than rounding reaches."""
        logits, tokens = completion.logits, tuple(completion.token_ids)
        oracle = self.trial.oracle
        is_known = all(0 <= token < oracle.subject.vocab_size for token in tokens)
        shape = (len(tokens), oracle.subject.vocab_size)
        if logits is None or not tokens or not is_known or tuple(logits.shape) != shape:
            return None
        exact = oracle.score(request.prompt_token_ids, tokens)
        moved = (centred(logits) - centred(exact)).abs().amax(dim=-1)
        is_off = ~(moved <= oracle.kappa * oracle.error.max_abs)
        return int(is_off.nonzero()[0]) if bool(is_off.any()) else None


def same_answer(a: Completion | None, b: Completion | None) -> bool:
    """Bit for bit, where there are logits."""
    if a is None or b is None:
        return a is b
    if (a.token_ids, a.finish_reason) != (b.token_ids, b.finish_reason):
        return False
    return a.logits is None or b.logits is None or torch.equal(a.logits, b.logits)
