"""Who runs when: barriers, lost steps, wrong places in the queue, endless waits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import pairwise

from harness.api import EngineConfig, Limits, Request, RowRecord, StepRecord, TokenEvent
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged_scheduler import Scheduler, SchedulerOutput, Sequence


def _without(plan: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
    """The same plan, but these requests sit the step out; they keep their slots."""
    return replace(
        plan,
        scheduled=tuple(pair for pair in plan.scheduled if pair[0].request_id not in dropped),
        rows=tuple(row for row in plan.rows if row.request_id not in dropped),
    )


@planted(Promise.P9, Cause.SCHEDULING, "EricLBuehler/candle-vllm#156")
class BatchBarrier(Scheduler):
    """Newcomers are admitted only once everybody who runs is done."""

    _is_open = True

    def schedule(self) -> SchedulerOutput:
        self._is_open = not self.running
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


@planted(Promise.P9, Cause.SCHEDULING, "HabanaAI/vllm-fork#2247")
class DecodeLosesAStep(Scheduler):
    """When a request finishes, the one behind it in the running list is skipped in the next step."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._skipped: set[str] = set()

    def schedule(self) -> SchedulerOutput:
        skipped, self._skipped = self._skipped, set()
        return _without(super().schedule(), skipped)

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        neighbours = list(pairwise(seq.request_id for seq in self.running))
        events, record = super().update(plan, token_ids)
        self._skipped = {behind for ahead, behind in neighbours if ahead in record.finished}
        return events, record


@planted(Promise.P9, Cause.SCHEDULING, "ddalcu/mlx-serve#205")
class PrefillStallsDecodes(Scheduler):
    """While a prompt is fed, nobody decodes: prefill and decode never share a forward pass."""

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        if all(self._is_decode(row) for row in plan.rows):
            return plan
        return _without(plan, {row.request_id for row in plan.rows if self._is_decode(row)})

    def _is_decode(self, row: RowRecord) -> bool:
        return row.context_len > 0 and row.query_len == 1


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/vllm#33522")
class PreemptedGoesToTheBack(Scheduler):
    """A preempted request waits behind all who came after it, not first in line."""

    def _preempt_youngest(self) -> str:
        request_id = super()._preempt_youngest()
        self.waiting.rotate(-1)
        return request_id


@planted(Promise.P10, Cause.LIVENESS, "vllm-project/vllm#35541")
class OversizedRequestBlocksTheQueue(Scheduler):
    """A request that could never fit the pool is queued all the same, and holds the line for ever."""

    def _pool_refusal(self, request: Request) -> str | None:  # noqa: ARG002
        return None


@planted(Promise.P1, Cause.CHUNK, "tenstorrent/tt-xla#5830")
class EveryChunkIsSampled(Scheduler):
    """A token is taken after every chunk of a prompt, not only after the last."""

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        return replace(plan, rows=tuple(replace(row, is_sampled=True) for row in plan.rows))


@dataclass(slots=True, eq=False)
class _Forgetful(Sequence):
    """Takes outputs that are no longer among its tokens."""

    given: list[int] = field(default_factory=list)

    @property
    def output_token_ids(self) -> list[int]:
        return self.given + self.token_ids[len(self.request.prompt_token_ids) :]


@planted(Promise.P1, Cause.PREEMPTION, "PaddlePaddle/FastDeploy#3080")
class OnlyThePromptIsRecomputed(Scheduler):
    """After preemption only the prompt is fed again; the outputs so far are kept, but not fed."""

    sequence_class = _Forgetful

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, _Forgetful), "this scheduler makes no others"
        victim.given = victim.output_token_ids
        del victim.token_ids[len(victim.request.prompt_token_ids) :]
        return super()._preempt_youngest()
