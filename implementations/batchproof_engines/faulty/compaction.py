"""Lists parallel to the batch that lose their alignment when a row leaves it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import (
    EngineConfig,
    Limits,
    StepRecord,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


@planted(Promise.P5, Cause.ROUTING, "torch-spyre/sendnn-inference#511")
class TwoFinishersSwapTheirLastTokens(Scheduler):
    """When two requests reach their caps in the same step, each gets the other's last token."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step after swapping the tokens of the first two rows that reach their caps."""
        tokens = list(token_ids)
        last = [
            index
            for index, (seq, _) in enumerate(plan.scheduled)
            if plan.rows[index].is_sampled
            and len(seq.output_token_ids) + 1 == seq.request.max_new_tokens
        ]
        if len(last) > 1:
            a, b = last[:2]
            tokens[a], tokens[b] = tokens[b], tokens[a]
        return super().update(plan, tokens)


@planted(Promise.P2, Cause.CAP, "ml-explore/mlx-lm#1772")
class CapsAreCutAtTheEnd(Scheduler):
    """When rows leave, the list of caps is shortened at its end: later rows get a neighbour's cap."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and realigns the caps by row from the start of the list."""
        caps = [seq.request.max_new_tokens for seq in self.running]
        events, record = super().update(plan, token_ids)
        for seq, cap in zip(self.running, caps, strict=False):
            possible = max(cap, len(seq.output_token_ids) + 1)
            seq.request = replace(seq.request, max_new_tokens=possible)
        return events, record


@planted(Promise.P3, Cause.EOS, "Blaizzy/mlx-vlm#1574")
class EmptyEosEntryIsNotRemoved(Scheduler):
    """A finished row without EOS ids leaves its empty entry behind, and all later entries slip by
    one."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and removes only the entries of finished rows that have EOS ids."""
        before = [(seq, seq.request.eos_token_ids) for seq in self.running]
        events, record = super().update(plan, token_ids)
        kept = [eos for seq, eos in before if seq.finish_reason is None or not eos]
        for seq, eos in zip(self.running, kept, strict=False):
            seq.request = replace(seq.request, eos_token_ids=eos)
        return events, record


@planted(Promise.P8, Cause.STALE, "vllm-project/vllm#43894")
class NewcomerInheritsEosIds(Scheduler):
    """A newcomer without EOS ids leaves its slot's entry unchanged: the former tenant's ids end it."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._left_behind: list[frozenset[int]] = []

    def schedule(self) -> SchedulerOutput:
        """Plans a step, and gives newcomers without EOS ids those that were left behind."""
        plan = super().schedule()
        for seq, _ in plan.scheduled:
            if seq.request_id in plan.admitted and self._left_behind:
                former = self._left_behind.pop(0)
                eos = seq.request.eos_token_ids or former
                seq.request = replace(seq.request, eos_token_ids=eos)
        return plan

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and keeps the EOS ids of finished sequences."""
        events, record = super().update(plan, token_ids)
        self._left_behind += [
            seq.request.eos_token_ids for seq, _ in plan.scheduled if seq.finish_reason is not None
        ]
        return events, record


@planted(Promise.P5, Cause.ROUTING, "NVIDIA/TensorRT-LLM#6147")
class LogitsAreHandedOutAfterCompaction(RaggedEngine):
    """Logits are returned by row after finished rows have moved to the end; the tokens are right."""

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        events, logits = super()._run_step()
        finished = {event.request_id for event in events if event.finish_reason is not None}
        compacted = sorted(logits, key=lambda request_id: request_id in finished)
        return events, dict(zip(compacted, logits.values(), strict=True))


@planted(Promise.P5, Cause.FEED, "ggml-org/llama.cpp#17263")
class ReleasedSlotIsStillFed(RaggedEngine):
    """When a row leaves and none takes its place, later rows are fed the token of the row before
    them."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._chosen: list[int] = []  # by row of the last step

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._forward(plan)
        self._chosen = logits.argmax(dim=-1).tolist()
        return logits

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        is_smaller = bool(self._trace and self._trace[-1].finished and not plan.admitted)
        if is_smaller and all(row.query_len == 1 for row in plan.rows):
            fed = self._chosen[: len(fed)]
        return fed, positions
