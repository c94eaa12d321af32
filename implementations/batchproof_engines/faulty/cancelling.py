"""Aborts that leave something behind or have no effect."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from heapq import heappush

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
from batchproof_paged import engine as paged_engine
from batchproof_paged import scheduler as paged_scheduler


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#28374")
class AbortKeepsTheBlocks(Scheduler):
    """An aborted request leaves its slot, but its blocks stay taken."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._leaked: list[Sequence] = []

    def abort(self, request_id: str) -> bool:
        """Aborts the request and remembers its sequence as the owner of its blocks."""
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
        """Aborts the request unless it is waiting."""
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
        """Aborts the request; one in mid-prefill is only marked."""
        for seq in self.running:
            is_half_fed = seq.num_computed_tokens < len(seq.request.prompt_token_ids)
            if seq.request_id == request_id and is_half_fed:
                self._deferred.add(request_id)
                return False
        return super().abort(request_id)

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and ends marked requests whose prompt is now complete."""
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


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#18701")
class AbortOfAPreemptedRequestLeaks(Miscounting):
    """A request that is aborted while preempted keeps the blocks it had before for good."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._former: dict[str, int] = {}

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        self._former[victim.request_id] = self._num_blocks(victim.num_computed_tokens)
        return super()._preempt_youngest()

    def abort(self, request_id: str) -> bool:
        """Aborts the request, and loses the blocks it had before its preemption."""
        num_blocks = self._former.pop(request_id, 0)
        if any(seq.request_id == request_id for seq in self.waiting):
            self._lose(num_blocks)
        return super().abort(request_id)


@planted(Promise.P13, Cause.CANCEL, "vllm-project/vllm#18485")
class IdAbortedWhileWaitingStaysLive(Scheduler):
    """The id of a request that is aborted before it ran never becomes free."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._kept: set[str] = set()

    def is_live(self, request_id: str) -> bool:
        """Returns whether the id is live or was aborted while waiting."""
        return request_id in self._kept or super().is_live(request_id)

    def abort(self, request_id: str) -> bool:
        """Aborts the request, and keeps its id if it had not run yet."""
        waiting = {seq.request_id for seq in self.waiting if not seq.output_token_ids}
        was_live = super().abort(request_id)
        self._kept |= waiting & {request_id}
        return was_live


@planted(Promise.P13, Cause.CANCEL, "sgl-project/mini-sglang#15")
class AbortByPrefix(RaggedEngine):
    """Ids are compared by prefix: an abort of r1 aborts r10 too."""

    def abort(self, request_id: str) -> None:
        """Aborts all live requests whose id begins with this one."""
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
        """Queues the request, and forgets what a former one of that id has freed."""
        self._freed.pop(request.request_id, None)
        return super().add(request)

    def abort(self, request_id: str) -> bool:
        """Aborts the request; the blocks of a finished one are freed again."""
        self._lose(-self._freed.pop(request_id, 0))
        return super().abort(request_id)

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and remembers how many blocks each finished sequence has freed."""
        events, record = super().update(plan, token_ids)
        for seq, _ in plan.scheduled:
            if seq.finish_reason is not None:
                self._freed[seq.request_id] = self._num_blocks(seq.num_computed_tokens)
        return events, record


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#40251")
class AbortKeepsTheLane(paged_scheduler.Scheduler):
    """The lane of a running request that is aborted is never assigned again."""

    def abort(self, request_id: str) -> bool:
        """Aborts the request without giving its lane back."""
        free_before = set(self._free_lanes)
        was_live = super().abort(request_id)
        self._free_lanes = sorted(free_before & set(self._free_lanes))
        return was_live


@planted(Promise.P13, Cause.CANCEL, "triton-inference-server/core#341", backend="blocks")
class AbortFreesTheLaneTwice(paged_scheduler.Scheduler):
    """The lane of a running request that is aborted is freed twice, and two newcomers get it."""

    def abort(self, request_id: str) -> bool:
        """Aborts the request and puts its lane on the free list twice."""
        free_before = set(self._free_lanes)
        was_live = super().abort(request_id)
        for lane in set(self._free_lanes) - free_before:
            heappush(self._free_lanes, lane)
        return was_live


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#34149", overlap=True)
class TokenInFlightOutlivesTheAbort(paged_engine.PagedEngine):
    """A token that was in flight when its request was aborted is delivered all the same."""

    def abort(self, request_id: str) -> None:
        """Aborts the request, but leaves the sequence of a token in flight unfinished."""
        flying = self._in_flight.sampled if self._in_flight is not None else ()
        super().abort(request_id)
        for row in flying:
            if row.sequence.finish_reason is FinishReason.ABORTED:
                row.sequence.finish_reason = None


@planted(Promise.P13, Cause.CANCEL, "NVIDIA/Megatron-LM#6916")
class LateAbortIsRemembered(RaggedEngine):
    """An abort that comes after the end of its request ends the next request of that id."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._late: set[str] = set()

    def abort(self, request_id: str) -> None:
        """Aborts the request, and remembers the id if it is not live."""
        if not self._scheduler.is_live(request_id):
            self._late.add(request_id)
        super().abort(request_id)

    def add(self, request: Request) -> None:
        """Queues the request, which is aborted at once if its id is remembered."""
        super().add(request)
        if request.request_id in self._late:
            self._late.remove(request.request_id)
            self.abort(request.request_id)


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#24070")
class EosIdsOutliveTheAbort(Scheduler):
    """EOS ids are kept by request id until the request finishes, so those of an aborted one stop the
    next of its id."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._eos_ids: dict[str, frozenset[int]] = {}

    def add(self, request: Request) -> Sequence:
        """Queues the request with the EOS ids that are known for its id."""
        known = self._eos_ids.setdefault(request.request_id, request.eos_token_ids)
        return super().add(replace(request, eos_token_ids=known))

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and forgets the EOS ids of those that finished in it."""
        events, record = super().update(plan, token_ids)
        for request_id in record.finished:
            del self._eos_ids[request_id]
        return events, record


@planted(Promise.P13, Cause.CANCEL, "smg-project/smg#2426")
class DuplicateHidesTheLiveRequest(RaggedEngine):
    """A duplicate that is refused takes its id's place in the table of ids: an abort misses the live
    request."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._hidden: set[str] = set()

    def add(self, request: Request) -> None:
        """Queues the request, and loses sight of the live one of its id, if there is one."""
        self._hidden.add(request.request_id)
        super().add(request)
        self._hidden.discard(request.request_id)

    def abort(self, request_id: str) -> None:
        """Aborts the request unless it is hidden."""
        if request_id not in self._hidden:
            super().abort(request_id)
