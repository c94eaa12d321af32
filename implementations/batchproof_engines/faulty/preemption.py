"""Requests that lose their cache midway and do not resume where they were."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from batchproof.api import Completion, FinishReason
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_paged import sequence as paged_sequence
from batchproof_paged.block_manager import BlockManager


@dataclass(slots=True, eq=False)
class _Forgetful(Sequence):
    """A sequence that can keep outputs that are no longer among its tokens."""

    given: list[int] = field(default_factory=list)

    @property
    def output_token_ids(self) -> list[int]:
        return self.given + self.token_ids[len(self.request.prompt_token_ids) :]


@planted(Promise.P1, Cause.PREEMPTION, "PaddlePaddle/FastDeploy#3080")
class OnlyThePromptIsRecomputed(Scheduler):
    """After a preemption only the prompt is fed again; the outputs so far are kept, but not fed."""

    sequence_class = _Forgetful

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, _Forgetful), "this scheduler makes no other sequences"
        victim.given = victim.output_token_ids
        del victim.token_ids[len(victim.request.prompt_token_ids) :]
        return super()._preempt_youngest()


@dataclass(slots=True, eq=False)
class _Counting(Sequence):
    """A sequence that counts the token in flight at each preemption as produced."""

    num_in_flight: int = 0

    def append(self, token_id: int) -> None:
        Sequence.append(self, token_id)  # a dataclass with slots is a new class: no bare super()
        num_counted = len(self.output_token_ids) + self.num_in_flight
        if self.finish_reason is None and num_counted >= self.request.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH


@planted(Promise.P2, Cause.PREEMPTION, "NVIDIA/TensorRT-LLM#10943")
class EachPreemptionCostsAToken(Scheduler):
    """The token in flight at a preemption is counted but never kept, so the answer ends too early."""

    sequence_class = _Counting

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, _Counting), "this scheduler makes no other sequences"
        victim.num_in_flight += 1
        return super()._preempt_youngest()


@planted(Promise.P14, Cause.PREEMPTION, "vllm-project/vllm#48245")
class LastTokenIsTakenBackAndGivenAgain(Scheduler):
    """A preempted request loses its last token and produces it again: right, but streamed twice."""

    def _preempt_youngest(self) -> str:
        if self.running[-1].output_token_ids:
            self.running[-1].token_ids.pop()
        return super()._preempt_youngest()


@dataclass(slots=True, eq=False)
class _Accumulating(Sequence):
    """A sequence that remembers how many outputs it had at its last preemption."""

    num_before: int = 0


class _Remembering(Scheduler):
    sequence_class = _Accumulating

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, _Accumulating), "this scheduler makes no other sequences"
        victim.num_before = len(victim.output_token_ids)
        return super()._preempt_youngest()


@planted(Promise.P1, Cause.PREEMPTION, "sgl-project/sglang#20724")
class LogitsGrowWithAPreemption(RaggedEngine):
    """The logits of tokens before a preemption are returned twice; the tokens are right."""

    scheduler_class = _Remembering

    def _completion(self, sequence: Sequence, logits: list[Tensor]) -> Completion:
        assert isinstance(sequence, _Accumulating), "this scheduler makes no other sequences"
        return super()._completion(sequence, logits[: sequence.num_before] + logits)


@planted(Promise.P1, Cause.PREEMPTION, "vllm-project/vllm#28787")
class OutputsAreMissingInALaterChunk(RaggedEngine):
    """A resumed request that is fed in chunks feeds only its prompt from the second chunk on."""

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        start = 0
        for (sequence, num_new), row in zip(plan.scheduled, plan.rows, strict=True):
            if row.context_len and num_new > 1:
                num_known = max(0, len(sequence.request.prompt_token_ids) - row.context_len)
                fed[start + num_known : start + num_new] = [0] * max(0, num_new - num_known)
            start += num_new
        return fed, positions


@planted(Promise.P1, Cause.PREEMPTION, "vllm-project/vllm-gaudi#541")
class ResumedAsADecode(BlockManager):
    """A resumed request counts as computed: only its last token is fed again."""

    def adopt(self, sequence: paged_sequence.Sequence, hits: tuple[int, ...]) -> None:
        """Adopts the hits, and counts all but the last token of a resumed sequence as computed."""
        super().adopt(sequence, hits)
        if sequence.output_token_ids:
            sequence.num_computed_tokens = sequence.num_tokens - 1
