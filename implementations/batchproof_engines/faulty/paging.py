"""Blocks and lanes of the paged engine: block tables that are wrong, ignored, or another request's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.lane_rows import LaneDecodes
from batchproof_paged.lanes import LanePool
from batchproof_paged.sequence import Sequence


@planted(Promise.P1, Cause.ADDRESSING, "Wenyueh/MinivLLM#85", backend="blocks")
class NewBlockOpenedATokenLate(BlockPool):
    """The key of a decode that opens a new block goes to the first slot of the block before it."""

    def attend(self, layer: int, *fed: Any) -> Tensor:
        """Attends honestly, and then moves the keys and values that opened a block."""
        result = super().attend(layer, *fed)
        decodes, cache = self._rows.decodes, self._layers[layer]
        lanes, seq_lens = ((), ()) if decodes is None else (decodes.lanes, decodes.seq_lens)
        for lane, seq_len in zip(map(int, lanes), map(int, seq_lens), strict=True):
            column, offset = divmod(seq_len - 1, self._block_size)
            if column and not offset:
                before, opened = self._tables[lane, column - 1 : column + 1].tolist()
                for cells in (cache.keys, cache.values):
                    cells[before, 0], cells[opened, 0] = cells[opened, 0].clone(), self._poison
        return result


@planted(Promise.P1, Cause.ADDRESSING, "tanishqkumar/ssd#23", backend="lanes")
class ForeignBlocksReadAsStraight(LanePool):
    """Keys are written by the block table, but read from the lane itself, wherever the blocks are."""

    def _is_straight(self, sequence: Sequence) -> bool:
        return len(sequence.block_table) * self._block_size <= self._capacity


@planted(Promise.P8, Cause.STALE, "gittensor-ai-lab/sparkinfer#146", backend="blocks")
class TableOfTheFormerTenant(BlockPool):
    """A lane's row of the table is rewritten only for a tenant with more blocks than it holds."""

    def _table_changes(self, batch: RaggedBatch) -> tuple[Ints, Ints]:
        for each in batch.scheduled:
            lane, table = each.sequence.lane, each.sequence.block_table
            if len(table) <= self._known[lane][1]:
                self._known[lane] = table, len(table)
        return super()._table_changes(batch)


@planted(Promise.P5, Cause.LEAK, "gittensor-ai-lab/sparkinfer#289", backend="blocks")
class TablesByRowNotByLane(BlockPool):
    """Decodes look up their table by row of the batch: right until a request leaves."""

    def begin(self, batch: RaggedBatch) -> None:
        """Begins the step with row numbers in the place of lanes."""
        super().begin(batch)
        decodes = self._rows.decodes
        if decodes is not None:
            rows = torch.arange(len(decodes.lanes), device=decodes.lanes.device)
            self._rows = replace(self._rows, decodes=replace(decodes, lanes=rows))


@planted(Promise.P1, Cause.ADDRESSING, "karpathy/nanochat#186", backend="lanes")
class GrowthLosesTheLastBlock(LanePool):
    """When the pool grows, its last column of blocks is not copied."""

    def _reserve(self, num_tokens: int) -> None:
        end = self._capacity
        super()._reserve(num_tokens)
        if end and self._capacity > end:
            for layer in self._layers.values():
                for each in (layer.keys, layer.values):
                    each[:, :, end - self._block_size : end] = self._poison


@planted(Promise.P8, Cause.STALE, "pegainfer-project/pegainfer#291", backend="lanes", decodes="torch")
class DecodesReadABlockTooFar(LanePool):
    """A decode that fills its block also sees the cells of the next one, whatever they hold."""

    def begin(self, batch: RaggedBatch) -> None:
        """Begins the step with the lengths of full decodes extended by a block."""
        super().begin(batch)
        decodes = self._decodes
        if isinstance(decodes, LaneDecodes):
            is_full = (decodes.seq_lens % self._block_size == 0) & (decodes.seq_lens > 1)
            lens = decodes.seq_lens + is_full * self._block_size
            longest = min(int(lens.max()), self._capacity)
            self._decodes = replace(decodes, seq_lens=lens, longest=longest)
