"""Serves the settings of a comparison on fresh engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from batchproof.api import Capability, Completion, Engine, StepRecord
from batchproof.campaign.invariance.grades import Answer
from batchproof.campaign.invariance.settings import KEPT, Setting
from batchproof.checks.contract_types import checked_trace
from batchproof.errors import BatchproofError
from batchproof.oracle.oracle import Oracle
from batchproof.run.laboratory import BUILD_TIME_LIMIT_S, Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.serving import serve
from batchproof.run.time_limit import time_limit


class NoAnswerError(BatchproofError):
    """Raised if the engine refuses a good request, or answers it in part only."""


@dataclass(frozen=True)
class Served:
    """The answer to the kept request, and the engine's records; None without the capability."""

    answer: Answer
    trace: tuple[StepRecord, ...] | None


@dataclass(frozen=True)
class Measured:
    """An engine on a model, with the oracle that knows the model's rounding."""

    lab: Laboratory
    spec: EngineSpec
    oracle: Oracle
    capabilities: frozenset[Capability]

    def serve(self, setting: Setting, prompt: tuple[int, ...]) -> Served:
        """Serves the calls on one fresh engine; `prompt` is that of the kept request.

        Raises `NoAnswerError`, `EngineHang`, `BrokenPromise` for values of the wrong type, and what
        the engine raises.
        """
        when = "while invariance was measured"
        with (
            num_threads(setting.num_threads),
            self.lab.watch.guard(self.spec, self.oracle.subject, when),
            self._engine(setting) as engine,
        ):
            kept: list[Completion] = []
            for call in setting.calls:
                completions = serve(engine, call, self.lab.time_limit_s).completions
                kept += [each for each in completions if each.request_id.startswith(KEPT)]
            return Served(self._joined(prompt, kept), self._trace(engine))

    @contextmanager
    def _engine(self, setting: Setting) -> Iterator[Engine]:
        with time_limit(BUILD_TIME_LIMIT_S, "building the engine"):
            engine = self.spec.factory(self.oracle.subject.model, setting.calls[0].config)
        try:
            yield engine
        finally:
            if Capability.CLOSING in self.capabilities:
                with time_limit(BUILD_TIME_LIMIT_S, "close"):
                    engine.close()  # type: ignore[attr-defined]

    def _joined(self, prompt: tuple[int, ...], kept: list[Completion]) -> Answer:
        """Returns the answers one behind the other."""
        for each in kept:
            if each.error is not None:
                raise NoAnswerError(f"it refuses a good request: {each.error}")
        token_ids = tuple(token for each in kept for token in each.token_ids)
        if Capability.LOGITS not in self.capabilities:
            return Answer(prompt, token_ids, None)
        rows = [each.logits for each in kept if each.logits is not None]
        if sum(len(each) for each in rows) != len(token_ids) or not token_ids:
            raise NoAnswerError("it returns another number of logit rows than of tokens")
        return Answer(prompt, token_ids, torch.cat(rows).detach().cpu())

    def _trace(self, engine: Engine) -> tuple[StepRecord, ...] | None:
        if Capability.TRACING not in self.capabilities:
            return None
        return tuple(checked_trace(engine.trace))  # type: ignore[attr-defined]


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Lets torch compute on that many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
