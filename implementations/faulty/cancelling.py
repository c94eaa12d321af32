"""Aborts that leave something behind or do nothing."""

from __future__ import annotations

from harness.api import EngineConfig, Limits
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged_scheduler import Scheduler, Sequence


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#28374")
class AbortKeepsTheBlocks(Scheduler):
    """An aborted request leaves its slot, but its blocks stay taken."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._leaked: list[Sequence] = []

    def abort(self, request_id: str) -> bool:
        self._leaked += [seq for seq in self.running if seq.request_id == request_id]
        return super().abort(request_id)

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        return super()._fits({**plan, **dict.fromkeys(self._leaked, 0)})

    def _num_free_blocks(self) -> int | None:
        free = super()._num_free_blocks()
        leaked = sum(self._num_blocks(seq.num_computed_tokens) for seq in self._leaked)
        return None if free is None else free - leaked


@planted(Promise.P13, Cause.CANCEL, "ggml-org/llama.cpp#24496")
class AbortOfAWaitingRequestIgnored(Scheduler):
    """Only running requests can be aborted; one that waits is served to its end."""

    def abort(self, request_id: str) -> bool:
        if any(seq.request_id == request_id for seq in self.waiting):
            return False
        return super().abort(request_id)
