"""A pool that gets its decodes as a captured step would pass them."""

from __future__ import annotations

import torch
from torch import Tensor

from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import DecodeRows, StepRows

NUM_MORE = 2  # padding rows


class CapturedPool(BlockPool):
    """Pads steps of decodes with rows of the trash lane."""

    def begin(self, batch: RaggedBatch) -> None:
        super().begin(batch)
        decodes, prefills = self._rows.decodes, self._rows.prefills
        if decodes is None or prefills is not None:
            return
        trash = decodes.lanes.new_full((NUM_MORE,), self.trash_lane)
        lanes, seq_lens = torch.cat([decodes.lanes, trash]), torch.cat([decodes.seq_lens, 0 * trash])
        self._rows = StepRows(DecodeRows(lanes, seq_lens, self._tables.shape[1]), None)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        num = len(query)
        if self._rows.prefills is None:
            query, key, value = (
                torch.cat([each, each.new_full((NUM_MORE, *each.shape[1:]), 3.0)])
                for each in (query, key, value)
            )
        out = super().attend(layer, query, key, value, form)
        assert out[num:].isfinite().all(), "a padding row's result is not finite"
        return out[:num]
