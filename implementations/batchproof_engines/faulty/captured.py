"""Decode steps captured once and replayed, and tokens that the host reads a step late."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from batchproof.api import FinishReason
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.blocks import TRASH, BlockPool
from batchproof_paged.engine import Landed, PagedEngine
from batchproof_paged.graphs import CapturedSteps, LastTokens
from batchproof_paged.kernels import StepRows
from batchproof_paged.layouts import Layout
from batchproof_paged.runner import Flight, ModelRunner
from batchproof_paged.sequence import PENDING


@planted(Promise.P1, Cause.PADDING, "m0at/rvllm#32", backend="blocks", graphs=True)
class PaddingRowsWriteToALiveBlock(BlockPool):
    """The padding rows of a captured step write their keys to block 0, which may belong to a
    request."""

    def begin_static(self, rows: StepRows) -> None:
        """Begins the step with the padding rows' table pointing to block 0."""
        self._tables[self.trash_lane] = TRASH + 1
        super().begin_static(rows)


@planted(
    Promise.P1,
    Cause.PADDING,
    "NVIDIA/TensorRT-LLM#3839",
    backend="blocks",
    graphs=True,
    overlap=True,
)
class PaddingRowsChooseForALiveLane(LastTokens):
    """The token that a padding row of a captured step chooses becomes the next token of lane 0."""

    def put(self, lanes: Tensor, token_ids: Tensor) -> None:
        """Stores the tokens, those of padding rows in lane 0."""
        super().put(torch.where(lanes == len(self._ids) - 1, 0, lanes), token_ids)


@planted(Promise.P5, Cause.STALE, "vllm-project/vllm#44868", backend="blocks", graphs=True)
class LanesOfTheFirstReplay(CapturedSteps):
    """A captured step reads the block tables of the requests that were in it at its first replay."""

    def __init__(self, *pieces: Any, **options: Any) -> None:
        super().__init__(*pieces, **options)
        self._first: dict[Layout, Ints] = {}

    def _inputs(self, layout: Layout, batch: RaggedBatch | None = None) -> list[Ints]:
        token_ids, prompt_ids, lanes, *rest = super()._inputs(layout, batch)
        if batch is not None:
            lanes = self._first.setdefault(layout, lanes)
        return [token_ids, prompt_ids, lanes, *rest]


@planted(Promise.P1, Cause.ADDRESSING, "slwang-ustc/nano-vllm-v1#3", backend="blocks", graphs=True)
class CapturedAColumnTooNarrow(BlockPool):
    """A captured step has no column for a block that is opened in it."""

    def graph_columns(self, seq_len: int) -> int:
        """Returns the number of columns for one token less than the sequence has."""
        return super().graph_columns(seq_len - 1)


@planted(Promise.P5, Cause.FEED, "vllm-project/vllm-gaudi#642", overlap=True)
class NewestTokenByRow(LastTokens):
    """Tokens that the host has not read are looked up by row of the batch instead of by lane."""

    def fill_in(self, token_ids: Tensor, lanes: Tensor) -> Tensor:
        """Returns the token ids, the pending ones looked up by row."""
        return super().fill_in(token_ids, torch.arange(len(lanes), device=lanes.device))


@planted(Promise.P8, Cause.STALE, "tenstorrent/vllm-tt-plugin#57", overlap=True)
class FormerTenantsTokenIsFed(ModelRunner):
    """After its prompt a newcomer is fed the last token that the lane's former tenant chose."""

    def launch(self, batch: RaggedBatch) -> Flight:
        """Launches the batch, and restores the former tenants' tokens in the lanes of its prompts."""
        newest = self._last_tokens._ids
        lanes = torch.from_numpy(batch.lanes[batch.num_decodes :]).to(newest.device)
        former = newest[lanes]
        flight = super().launch(batch)
        newest[lanes] = torch.where(former > 0, former, newest[lanes])
        return flight


@planted(Promise.P3, Cause.EOS, "vllm-project/vllm-omni#3532", overlap=True)
class StopIsSeenAStepLate(PagedEngine):
    """When an EOS is read, the next step is already running, and its token is delivered too."""

    def _land(self) -> Landed:
        events, logits = super()._land()
        stopped = {each.request_id for each in events if each.finish_reason is FinishReason.STOP}
        for sequence in self._scheduler.running:
            if sequence.request_id in stopped:
                sequence.token_ids.append(PENDING)
        return events, logits


@planted(Promise.P1, Cause.PREEMPTION, "vllm-project/vllm#38624", overlap=True)
class TokenInFlightStaysAPlaceholder(PagedEngine):
    """The token in flight at a preemption is streamed, but the request continues with token 0."""

    def _land(self) -> Landed:
        events, logits = super()._land()
        told = {each.request_id for each in events}
        for sequence in self._scheduler.waiting:
            if sequence.request_id in told:
                sequence.token_ids[-1] = 0
        return events, logits


@planted(Promise.P12, Cause.INPUT, "smg-project/smg#2426", overlap=True)
class IdIsFreeWhileItsTokenFlies(PagedEngine):
    """An id may be used again before the last token of its request has been delivered."""

    def _is_live(self, request_id: str) -> bool:
        return self._scheduler.is_live(request_id)
