"""A failure as `batchproof.repro` sees it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
)
from batchproof.checks.verdict import ConformanceFailure, EngineRaised, Scene
from batchproof.errors import EngineHang
from batchproof.promises import Promise
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Failed:
    """What was found, on which engine and model, and by which test."""

    error: ConformanceFailure | EngineHang
    scene: Scene
    trial: Trial
    test: str  # its node id
    name: str  # short: of the test or the case

    @property
    def promise(self) -> Promise:
        return Promise.P10 if isinstance(self.error, EngineHang) else self.error.promise

    @property
    def finding(self) -> str:
        told = str(self.error) if isinstance(self.error, EngineHang) else self.error.finding
        return told.splitlines()[0]

    @property
    def evidence(self) -> list[str]:
        return [] if isinstance(self.error, EngineHang) else self.error.evidence

    @property
    def request_id(self) -> str | None:
        if isinstance(self.error, EngineHang):
            return None
        return self.facts.get("request_id", self.error.request_id)

    @property
    def facts(self) -> dict[str, Any]:
        return {} if isinstance(self.error, EngineHang) else self.error.facts

    @property
    def workloads(self) -> list[Workload]:
        return [run.workload for run in self.scene.runs]

    @property
    def other_workloads(self) -> list[Workload]:
        return [run.workload for run in self.scene.other]

    @property
    def every_workload(self) -> list[Workload]:
        return self.workloads + self.other_workloads

    @property
    def is_stepped(self) -> bool:
        return any(workload.needs_stepping for workload in self.every_workload)

    @property
    def workload(self) -> Workload:
        return self.scene.workload

    @property
    def config(self) -> EngineConfig:
        return self.workload.config

    def has(self, capability: Capability) -> bool:
        return capability in self.trial.capabilities

    @property
    def is_a_race(self) -> bool:
        """May another try be needed to see it?"""
        known = self.trial.lab._is_bitwise.get((self.trial.spec.name, self.trial.subject.name), True)
        return self.promise is Promise.P16 or not known

    @cached_property
    def rule(self) -> str:
        """What must be looked at again."""
        if isinstance(self.error, EngineHang):
            return "hang"
        if isinstance(self.error, EngineRaised):
            return "raised" if self.finding.startswith("the engine raised") else UNKNOWN
        if self.error.rule is not None:
            is_alone = self.error.rule in ("relation", "moves") and not self.scene.other
            return UNKNOWN if is_alone else self.error.rule
        return self._rule_of_answers(self.error)

    def _rule_of_answers(self, error: ConformanceFailure) -> str:
        """For those that name no rule: they are about answers, or events."""
        if self.workload.aborts:
            return "cancel"
        is_about_events = error.promise in (Promise.P12, Promise.P14) and error.request_id is None
        if is_about_events and self.workload.needs_stepping:
            return "stream"
        is_about_answers = error.request_id is not None or error.promise is Promise.P4
        return "answers" if is_about_answers else UNKNOWN

    def is_bad(self, workload: Workload, index: int) -> bool:
        """Must request `index` of a call be refused?"""
        request, config = workload.requests[index], workload.config
        limits = Limits.of(self.trial.subject.model, config)
        together = limits.refusals(workload.requests)[index]
        # Stepped, an id may come again once it is free.
        reason = limits.refusal(request) if workload.needs_stepping else together
        num_fed = len(request.prompt_token_ids) + request.max_new_tokens - 1
        pool = config.num_blocks or sys.maxsize
        return reason is not None or (
            self.has(Capability.PREEMPTION) and ceil(num_fed / config.block_size) > pool
        )

    @cached_property
    def expected(self) -> list[Completion | None]:
        """The right answers to the failed call; None where it must be an error."""
        return [
            None if self.is_bad(self.workload, index) else self.right(request)
            for index, request in enumerate(self.workload.requests)
        ]

    def right(self, request: Request) -> Completion:
        token_ids, reason = self.trial.oracle.expected(request)
        return Completion(request.request_id, tuple(token_ids), FinishReason(reason))
