"""Waits that never end."""

from __future__ import annotations

from collections import deque

from batchproof.api import EngineConfig, Limits, Request
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


@planted(Promise.P10, Cause.LIVENESS, "vllm-project/vllm#35541")
class OversizedRequestBlocksTheQueue(Scheduler):
    """A request that could never fit into the pool is queued all the same, and blocks the queue for
    good."""

    def _pool_refusal(self, request: Request) -> str | None:  # noqa: ARG002
        return None


@planted(Promise.P10, Cause.LIVENESS, "sgl-project/sglang#23006")
class OnlySlotWaitsForItself(Scheduler):
    """With a single slot, a prompt fed in chunks counts itself as the tenant it has to wait for."""

    def schedule(self) -> SchedulerOutput:
        """Plans an empty step while the only slot holds an incomplete prompt."""
        if self._config.max_num_seqs == 1 and self.running:
            tenant = self.running[0]
            if tenant.num_computed_tokens < len(tenant.request.prompt_token_ids):
                return SchedulerOutput((), (), (), ())
        return super().schedule()


@planted(Promise.P10, Cause.LIVENESS, "PaddlePaddle/FastDeploy#3292")
class AlignedVictimNeverComesBack(Scheduler):
    """A request that is preempted when all its blocks are exactly full is never scheduled again."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._zombies: set[str] = set()

    def _preempt_youngest(self) -> str:
        if self.running[-1].num_computed_tokens % self._config.block_size == 0:
            self._zombies.add(self.running[-1].request_id)
        return super()._preempt_youngest()

    def schedule(self) -> SchedulerOutput:
        """Plans a step without those victims, which stay in the queue."""
        held = [seq for seq in self.waiting if seq.request_id in self._zombies]
        self.waiting = deque(seq for seq in self.waiting if seq not in held)
        plan = super().schedule()
        self.waiting.extendleft(reversed(held))
        return plan

    def abort(self, request_id: str) -> bool:
        """Aborts the request, whether it is such a victim or not."""
        self._zombies.discard(request_id)
        return super().abort(request_id)
