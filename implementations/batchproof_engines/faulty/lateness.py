"""Ends that are later than declared, late without need, or wrongly handled under a declared delay."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from math import ceil

from torch import Tensor

from batchproof.api import StepRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.delayed import DelayedEngine, DelayedScheduler, DelayedSequence
from batchproof_engines.ragged.scheduler import SchedulerOutput


@planted(Promise.P9, Cause.SCHEDULING, "tenstorrent/vllm-tt-plugin#76")
class EosReadLateAndNotDeclared(DelayedEngine):
    """An EOS is read one step late, but the engine declares no delay."""

    scheduling_delay = 0


class _TwoStepsLate(DelayedScheduler):
    delay = 2


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/tpu-inference#3449")
class EosReadTwoStepsLate(DelayedEngine):
    """An EOS is read two steps late, but the engine declares a delay of one."""

    scheduler_class = _TwoStepsLate


class _CapReadLate(DelayedSequence):
    def is_unforeseen(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_uncomputed_tokens(self) -> int:
        num_known = len(self.request.prompt_token_ids) + self.request.max_new_tokens
        return min(super().num_uncomputed_tokens, num_known - self.num_computed_tokens)


class _CapsReadLate(DelayedScheduler):
    sequence_class = _CapReadLate


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/vllm#27922")
class CapReadLate(DelayedEngine):
    """Under a declared delay, an end at the cap, which is known beforehand, is late as well."""

    scheduler_class = _CapsReadLate


class _StreamsTheSurplus(DelayedScheduler):
    def _read(self, sequence: DelayedSequence) -> list[TokenEvent]:
        surplus = sequence.token_ids[sequence.end :]
        (eos,) = super()._read(sequence)
        if not surplus:  # it was preempted
            return [eos]
        return [eos._replace(finish_reason=None), eos._replace(token_id=surplus[0])]


@planted(Promise.P14, Cause.STREAM, "huggingface/transformers#47912")
class SurplusTokenIsStreamed(DelayedEngine):
    """Under a declared delay, the token of the surplus row is streamed after the EOS."""

    scheduler_class = _StreamsTheSurplus


@planted(Promise.P11, Cause.ACCOUNTING, "vllm-project/vllm-ascend#14055")
class BlocksFreeWhileStillFed(DelayedEngine):
    """Under a declared delay, the trace reports a late end with its EOS: its blocks are free, yet still
    filled."""

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        before = self._unread()
        num_records = len(self._trace)
        answer = super()._run_step()
        after = self._unread()
        for record in self._trace[num_records:]:
            ended = [each for each in after if each not in before]
            finished = [each for each in record.finished if each not in before]
            free = record.num_free_blocks
            if free is not None:
                free += sum(after[each] for each in ended)
            self._trace[-1] = replace(record, finished=(*finished, *ended), num_free_blocks=free)
        return answer

    def _unread(self) -> dict[str, int]:
        """Returns the number of blocks of each request whose EOS was sampled but not read."""
        scheduler = self._scheduler
        assert isinstance(scheduler, DelayedScheduler), "it is the class's scheduler"
        size = self._config.block_size
        return {s.request_id: ceil(s.num_computed_tokens / size) for s in scheduler._unread()}


class _HoldsBlocks(DelayedScheduler):
    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        late = self._unread()
        held = {seq.request_id: self._num_blocks(seq.num_computed_tokens + 1) for seq in late}
        events, record = super().update(plan, token_ids)
        free = record.num_free_blocks
        if free is not None:
            free -= sum(held.get(each, 0) for each in record.finished)
        return events, replace(record, num_free_blocks=free)


@planted(Promise.P11, Cause.ACCOUNTING, "vllm-project/vllm#45357")
class BlocksHeldBehindALateEnd(DelayedEngine):
    """Under a declared delay, the blocks of a late end are given back a step after the request has
    finished."""

    scheduler_class = _HoldsBlocks
