"""A pool that gets its rows as a captured step would pass them."""

from __future__ import annotations

import torch
from torch import Tensor

from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import DecodeRows, PrefillRows, StepRows

MORE_DECODES, MORE_ROWS, MORE_TOKENS = 2, 3, 5  # padding


class CapturedPool(BlockPool):
    """Pads decode rows, prefill rows and prompt tokens, and removes the spans known to the host.

    Padding rows belong to the trash lane, and padding tokens go to the trash block.
    """

    def begin(self, batch: RaggedBatch) -> None:
        super().begin(batch)
        decodes, prefills = self._rows.decodes, self._rows.prefills
        none = torch.zeros(0, dtype=torch.int64, device=self._tables.device)
        columns = self._tables.shape[1]
        lanes, seq_lens = (decodes.lanes, decodes.seq_lens) if decodes else (none, none)
        self._num_decodes = len(lanes)
        padded = DecodeRows(
            self._padded(lanes, MORE_DECODES, self.trash_lane),
            self._padded(seq_lens, MORE_DECODES, 0),
            columns,
        )
        if prefills is not None:
            prefills = PrefillRows(
                self._padded(prefills.lanes, MORE_ROWS, self.trash_lane),
                self._padded(prefills.context_lens, MORE_ROWS, 0),
                self._padded(prefills.starts, MORE_ROWS, int(prefills.starts[-1])) + MORE_DECODES,
                columns,
                self._padded(prefills.slots, MORE_TOKENS, 0),
                None,
            )
        self._rows = StepRows(padded, prefills)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        num, more = self._num_decodes, 0 if self._rows.prefills is None else MORE_TOKENS

        def pad(fed: Tensor) -> Tensor:
            paddings = (fed.new_full((size, *fed.shape[1:]), 3.0) for size in (MORE_DECODES, more))
            behind_decodes, behind_all = paddings
            return torch.cat([fed[:num], behind_decodes, fed[num:], behind_all])

        out = super().attend(layer, *map(pad, (query, key, value)), form)
        assert out[num : num + MORE_DECODES].isfinite().all(), "a padding row's result is not finite"
        return torch.cat([out[:num], out[num + MORE_DECODES : len(out) - more]])

    @staticmethod
    def _padded(numbers: Tensor, size: int, value: int) -> Tensor:
        return torch.cat([numbers, numbers.new_full((size,), value)])
