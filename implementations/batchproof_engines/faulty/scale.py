"""What few short requests never reach: a 33rd sequence, a hundredth request, a long context."""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from batchproof.api import Completion, EngineConfig, Limits, Request, RowRecord
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine, packed_places
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager
from batchproof_engines.ragged_paged.drafting import Speculator


@planted(Promise.P5, Cause.ROUTING, "NVIDIA/TensorRT-LLM#10688")
class ThirtyThirdRowHasNoPlace(RaggedEngine):
    """A step has room for 32 rows: the logits of each further one are those of the last."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._forward(plan)
        return logits[torch.arange(len(logits), device=logits.device).clamp(max=31)]


@planted(Promise.P8, Cause.STALE, "ggml-org/llama.cpp#4185")
class RingOf699Requests(Scheduler):
    """Prompts are kept in a ring of 699 places; one that is used again keeps its first token."""

    num_places: ClassVar[int] = 699

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._first_tokens: list[int] = []

    def add(self, request: Request) -> Sequence:
        sequence = super().add(request)
        self._first_tokens.append(request.prompt_token_ids[0])
        if len(self._first_tokens) > self.num_places:
            sequence.token_ids[0] = self._first_tokens[-1 - self.num_places]
        return sequence


@planted(Promise.P1, Cause.MASK, "Nehanth/swarmllm#31")
class KeysFrom1024OnAreNotSeen(RaggedEngine):
    """A query sees its own key and, of all others, those at positions below 1,024."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        mask = super()._mask(rows, window)
        _, _, _, positions = packed_places(rows, mask.device)
        own = torch.zeros_like(mask)
        own.diagonal(len(positions) - len(mask)).fill_(True)
        return mask & (own | (positions < 1024))


@planted(Promise.P1, Cause.FEED, "vllm-project/tpu-inference#3466")
class PromptOfAPowerOfTwoLosesItsEnd(RaggedEngine):
    """The last token of a prompt of 64, 128, 256 ... tokens is fed as token 0."""

    least: ClassVar[int] = 64

    def _row_tokens(self, sequence: Sequence, row: RowRecord) -> tuple[list[int], range]:
        fed, positions = super()._row_tokens(sequence, row)
        length = len(sequence.request.prompt_token_ids)
        is_end = row.context_len + row.query_len == length
        if is_end and length >= self.least and length.bit_count() == 1:
            fed[-1] = 0
        return fed, positions


@planted(Promise.P1, Cause.SIZE, "ggml-org/llama.cpp#4251")
class AnswersInARingOf64(RaggedEngine):
    """Answers are kept in a ring of 64 tokens: the 65th takes the place of the first."""

    num_places: ClassVar[int] = 64

    def _completion(self, sequence: Sequence, logits: list[Tensor]) -> Completion:
        done = super()._completion(sequence, logits)
        kept = done.token_ids
        moved = tuple(kept[i + self.num_places :][:1] or kept[i : i + 1] for i in range(len(kept)))
        return replace(done, token_ids=tuple(token for each in moved for token in each))


@planted(Promise.P9, Cause.SCHEDULING, "EricLBuehler/mistral.rs#2033")
class ArrivalsWrapAt128Steps(Scheduler):
    """The step of arrival is kept in eight bits with a sign, and the queue is sorted by it: the 129th
    step comes first."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._num_steps = 0
        self._arrivals: dict[str, int] = {}

    def add(self, request: Request) -> Sequence:
        sequence = super().add(request)
        self._arrivals[request.request_id] = (self._num_steps + 128) % 256 - 128
        self.waiting = deque(sorted(self.waiting, key=lambda each: self._arrivals[each.request_id]))
        return sequence

    def schedule(self) -> SchedulerOutput:
        self._num_steps += 1
        return super().schedule()


@planted(Promise.P10, Cause.LIVENESS, "RBLN-SW/vllm-rbln#957")
class HundredthOfThePoolIsReserved(Scheduler):
    """A hundredth of the blocks is set aside, but counted when a request is accepted: one that needs
    all of them waits for ever."""

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        asked = self._config
        if asked.num_blocks is not None:
            self._config = replace(asked, num_blocks=asked.num_blocks - asked.num_blocks // 100)
        try:
            return super()._fits(plan)
        finally:
            self._config = asked


@planted(Promise.P5, Cause.ACCOUNTING, "vllm-project/vllm#37076")
class SharersInEightBits(BlockManager):
    """How many sequences use a block is kept in eight bits: what 257 share goes with the second."""

    def adopt(self, sequence: Sequence, hits: list[int]) -> None:
        super().adopt(sequence, hits)
        self.num_users.update({block: self.num_users[block] % 256 or 1 for block in hits})

    def release(self, sequence: Sequence) -> None:
        for block in self.tables[sequence.request_id].blocks:
            self.num_users.setdefault(block, 1)
        super().release(sequence)


@planted(Promise.P17, Cause.SPECULATION, "openvinotoolkit/openvino.genai#4190")
class AcceptedDraftsInEightBits(Speculator):
    """Accepted drafts are counted in eight bits; once the count has wrapped, the next that is rejected
    stays."""

    num_counted, is_due = 0, False

    def num_right(self, sequence: Sequence, drafts: list[int], choices: list[int]) -> int:
        num = super().num_right(sequence, drafts, choices)
        self.num_counted += num - 1
        self.is_due |= self.num_counted >= 256
        self.num_counted %= 256
        if self.is_due and num <= len(drafts):
            self.is_due = False
            return num + 1
        return num
