"""Serves the settings of a comparison on fresh engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from batchproof.api import Capability, Completion, StepRecord
from batchproof.checks.answers import check_order, structure_findings
from batchproof.checks.broken import broken, require
from batchproof.findings.finding import Rule
from batchproof.run.invariance.grades import Answer
from batchproof.run.invariance.settings import KEPT, Setting
from batchproof.run.trial import Trial


@dataclass(frozen=True)
class Served:
    """The answer to the kept request, the last completion it comes from, and the engine's records;
    None without the capability."""

    answer: Answer
    completion: Completion
    trace: tuple[StepRecord, ...] | None


def serve_setting(trial: Trial, setting: Setting, prompt: tuple[int, ...]) -> Served:
    """Serves the calls on one fresh engine; `prompt` is that of the kept request.

    Raises `ConformanceFailure` and `HangFailure` as `Trial.run` does, and if a request is refused or
    answered in part only.
    """
    kept: list[Completion] = []
    with (
        num_threads(setting.num_threads),
        trial.reporting(setting.calls[0], Rule.RAISED),
        trial.engine(setting.calls[0].config) as engine,
    ):
        for call in setting.calls:
            completions = trial.run(call, engine).completions
            with trial.reporting(call):
                check_order(call.requests, completions)
                for request, completion in zip(call.requests, completions, strict=True):
                    require(structure_findings(request, completion))
                    if request.request_id.startswith(KEPT):
                        _require_rows(completion)
                        kept.append(completion)
        has_trace = Capability.TRACING in trial.capabilities
        trace = tuple(trial.trace_of(engine)) if has_trace else None
    token_ids = tuple(token for each in kept for token in each.token_ids)
    rows = [each.logits for each in kept if each.logits is not None]
    logits = torch.cat(rows).detach().cpu() if rows and trial.has_logits else None
    return Served(Answer(prompt, token_ids, logits), kept[-1], trace)


def _require_rows(completion: Completion) -> None:
    if completion.logits is not None and len(completion.logits) != len(completion.token_ids):
        got, should_be = tuple(completion.logits.shape), (len(completion.token_ids), "vocab_size")
        name = completion.request_id
        raise broken(Rule.LOGITS_SHAPE, name, got=str(got), should_be=str(should_be))


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Lets torch compute on that many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
