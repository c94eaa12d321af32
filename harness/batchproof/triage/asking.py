"""Gives scenes to fresh engines of one kind on one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten

from batchproof.api import Capability, Engine, EngineConfig, Request
from batchproof.checks.answers import check_order
from batchproof.checks.broken import BrokenPromise
from batchproof.errors import BatchproofError, EngineHang
from batchproof.findings.finding_text import headline
from batchproof.models.catalogue import ModelUnderTest
from batchproof.records.machine_paths import without_machine_paths
from batchproof.run.laboratory import BUILD_TIME_LIMIT_S, Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.serving import serve
from batchproof.run.time_limit import contained, time_limit
from batchproof.triage.configurations import Answered
from batchproof.triage.scenes import Scene
from batchproof.workload.workloads import Workload

WHEN = "during triage"
LONGEST_TEXT = 300  # of an exception


class NoAnswerError(BatchproofError):
    """Raised if an engine raises, hangs, or answers other requests than those it was asked."""


@dataclass(frozen=True)
class Asker:
    lab: Laboratory
    spec: EngineSpec
    subject: ModelUnderTest
    capabilities: frozenset[Capability]

    def answers(self, scene: Scene) -> list[Answered]:
        """Serves the calls on one fresh engine, and returns all answers in order. Raises
        `NoAnswerError`."""
        found: list[Answered] = []
        try:
            with (
                contained(),
                self.lab.watch.guard(self.spec, self.subject, WHEN),
                self._engine(scene[0].config) as engine,
            ):
                for call in scene:
                    completions = serve(engine, call, self.lab.time_limit_s).completions
                    check_order(call.requests, completions)
                    found += map(Answered, call.requests, completions)
        except BrokenPromise as error:
            raise NoAnswerError(headline(error.finding)) from error
        except (Exception, EngineHang) as error:
            text = shorten(without_machine_paths(str(error)), LONGEST_TEXT, placeholder=" ...")
            raise NoAnswerError(f"it raised {type(error).__name__}: {text}") from error
        return found

    def alone(self, requests: Sequence[Request]) -> list[Answered]:
        """Asks one fresh engine one request at a time. Raises `NoAnswerError`."""
        return self.answers(alone(requests))

    @contextmanager
    def _engine(self, config: EngineConfig) -> Iterator[Engine]:
        with time_limit(BUILD_TIME_LIMIT_S, "building the engine"):
            engine = self.spec.factory(self.subject.model, config)
        try:
            yield engine
        finally:
            if Capability.CLOSING in self.capabilities:
                with time_limit(BUILD_TIME_LIMIT_S, "close"):
                    engine.close()  # type: ignore[attr-defined]


def alone(requests: Sequence[Request]) -> Scene:
    """Returns the scene of one request after the other, each in a call of its own."""
    return tuple(Workload((each,), EngineConfig()) for each in requests)
