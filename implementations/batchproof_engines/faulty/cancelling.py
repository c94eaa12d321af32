"""Aborts that leave something behind or have no effect."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from transformers import PreTrainedModel

from batchproof.api import (
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    StepRecord,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.accounting import Miscounting
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence


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
    """Only running requests can be aborted; a waiting one is served to its end."""

    def abort(self, request_id: str) -> bool:
        if any(seq.request_id == request_id for seq in self.waiting):
            return False
        return super().abort(request_id)


@planted(Promise.P13, Cause.CANCEL, "vllm-project/vllm#46283")
class AbortWaitsForTheEndOfThePrompt(Scheduler):
    """A request aborted in mid-prefill is fed to the end of its prompt before it ends."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._deferred: set[str] = set()

    def abort(self, request_id: str) -> bool:
        for seq in self.running:
            is_half_fed = seq.num_computed_tokens < len(seq.request.prompt_token_ids)
            if seq.request_id == request_id and is_half_fed:
                self._deferred.add(request_id)
                return False
        return super().abort(request_id)

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        ended = {row.request_id for row in plan.rows if row.is_sampled} & self._deferred
        self._deferred -= ended
        self.running = [seq for seq in self.running if seq.request_id not in ended]
        events = [
            TokenEvent(each.request_id, None, FinishReason.ABORTED)
            if each.request_id in ended
            else each
            for each in events
        ]
        finished = tuple(dict.fromkeys((*record.finished, *sorted(ended))))
        free = self._num_free_blocks()
        return events, replace(record, finished=finished, num_free_blocks=free)


@planted(Promise.P13, Cause.CANCEL, "sgl-project/mini-sglang#15")
class AbortByPrefix(RaggedEngine):
    """Ids are compared by prefix: an abort of r1 aborts r10 too."""

    def abort(self, request_id: str) -> None:
        live = [seq.request_id for seq in (*self._scheduler.running, *self._scheduler.waiting)]
        for each in live:
            if each.startswith(request_id):
                super().abort(each)


@planted(Promise.P13, Cause.ACCOUNTING, "deepspeedai/DeepSpeed-MII#497")
class AbortOfAFinishedRequestFreesAgain(Miscounting):
    """An abort that comes after the last token frees the request's blocks a second time."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._freed: dict[str, int] = {}

    def add(self, request: Request) -> Sequence:
        self._freed.pop(request.request_id, None)
        return super().add(request)

    def abort(self, request_id: str) -> bool:
        self._lose(-self._freed.pop(request_id, 0))
        return super().abort(request_id)

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        for seq, _ in plan.scheduled:
            if seq.finish_reason is not None:
                self._freed[seq.request_id] = self._num_blocks(seq.num_computed_tokens)
        return events, record


@planted(Promise.P13, Cause.CANCEL, "NVIDIA/Megatron-LM#6916")
class LateAbortIsRemembered(RaggedEngine):
    """An abort that comes after the end of its request ends the next request of that id."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._late: set[str] = set()

    def abort(self, request_id: str) -> None:
        if not self._scheduler.is_live(request_id):
            self._late.add(request_id)
        super().abort(request_id)

    def add(self, request: Request) -> None:
        super().add(request)
        if request.request_id in self._late:
            self._late.remove(request.request_id)
            self.abort(request.request_id)


@planted(Promise.P13, Cause.CANCEL, "smg-project/smg#2426")
class DuplicateHidesTheLiveRequest(RaggedEngine):
    """A duplicate that is refused takes its id's place in the table of ids: an abort misses the live
    request."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._hidden: set[str] = set()

    def add(self, request: Request) -> None:
        self._hidden.add(request.request_id)
        super().add(request)
        self._hidden.discard(request.request_id)

    def abort(self, request_id: str) -> None:
        if request_id not in self._hidden:
            super().abort(request_id)
