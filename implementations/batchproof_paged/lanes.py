"""Keys and values on a CPU: one row of a grid per running sequence, read as views.

The block manager lays block ids out as a grid of lanes and columns, and gives a sequence the blocks of
its own lane, in order, whenever it can. Here the blocks of a lane lie side by side:

    lane 0   | block 0 | block 3 | block 6 |      keys (num_lanes, num_kv_heads, capacity, qk_dim)
    lane 1   | block 1 | block 4 | block 7 |
    lane 2   | block 2 | block 5 | block 8 |

so a *straight* sequence is a slice: nothing is copied, and one call serves all decodes. A sequence with
blocks of other lanes (from the prefix cache, or because its own were taken) is gathered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from batchproof_paged import native
from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.kernels import LayerCache
from batchproof_paged.lane_rows import (
    Decodes,
    LaneRow,
    NativeDecodes,
    attend_row,
    attend_row_natively,
    decodes_of,
    worth_batching,
)
from batchproof_paged.sequence import Sequence


class LanePool:
    """A `Backend` for a CPU.

    Its memory is `num_lanes` times the longest sequence so far, grown by doubling, and never more than
    the block manager's pool.
    """

    def __init__(
        self,
        num_lanes: int,
        block_size: int,
        num_blocks: int | None = None,
        poison: float = 0.0,
        is_native: bool = False,
    ) -> None:
        """`is_native`: all keys are float32, and the kernels of `native` work."""
        num_columns = sys.maxsize if num_blocks is None else -(-num_blocks // num_lanes)
        self._longest = num_columns * block_size
        self._num_lanes = num_lanes
        self._block_size = block_size
        self._poison = poison  # the content of unused cells
        self._capacity = 0  # tokens per lane
        self._layers: dict[int, LayerCache] = {}
        self._writes: tuple[Tensor, Tensor]  # lane and offset of each fed token
        self._is_native = is_native
        self._attend_row = attend_row_natively if is_native else attend_row
        self._decodes: Decodes | None = None
        self._singles: list[LaneRow] = []

    @property
    def num_bytes(self) -> int:
        """Returns the size of all keys and values in bytes."""
        return sum(each.num_bytes for each in self._layers.values())

    @torch.inference_mode()
    def poison(self, block_ids: Seq[int], value: float) -> None:
        """Fills free blocks of all layers with `value`."""
        for block in block_ids:
            column, lane = divmod(block, self._num_lanes)
            cells = slice(column * self._block_size, (column + 1) * self._block_size)
            for layer in self._layers.values():
                layer.keys[lane, :, cells] = value
                layer.values[lane, :, cells] = value

    def begin(self, batch: RaggedBatch) -> None:
        """Prepares a step: where its keys go, and which decodes one call serves; grows the lanes if
        needed."""
        lanes, offsets = self._places(batch.slot_mapping(self._block_size))
        self._writes = torch.from_numpy(lanes), torch.from_numpy(offsets)
        self._reserve(int(offsets.max()) // self._block_size * self._block_size + self._block_size)
        seq_lens = batch.seq_lens
        is_straight = np.array([self._is_straight(each.sequence) for each in batch.scheduled])
        batched = np.flatnonzero(is_straight[: batch.num_decodes])
        if not self._is_native:
            batched = batched[worth_batching(seq_lens[batched], batch.lanes[batched])]
        self._decodes = self._together(batched, batch.lanes[batched], seq_lens[batched])
        alone = np.ones(len(seq_lens), dtype=bool)
        alone[batched] = False
        self._singles = [
            self._single(batch, row, bool(is_straight[row])) for row in np.flatnonzero(alone).tolist()
        ]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        """Stores the keys and values of the fed tokens and attends; see `Backend.attend`."""
        held = self._layers.get(layer) or self._allocate(layer, key, value)
        self._store(held, key, value)
        result = query.new_empty(*query.shape[:2], value.shape[2])
        if self._decodes is not None:
            self._decodes.attend(held, query, form, result)
        for row in self._singles:
            self._attend_row(row, held, query[row.tokens], form, result[row.tokens])
        return result

    def _store(self, held: LayerCache, key: Tensor, value: Tensor) -> None:
        lanes, offsets = self._writes
        if self._is_native:
            native.store(held.keys, held.values, lanes, offsets, key, value)
        else:
            held.keys[lanes, :, offsets] = key
            held.values[lanes, :, offsets] = value

    def _together(self, rows: Ints, lanes: Ints, seq_lens: Ints) -> Decodes | None:
        """Returns what serves these decodes of the batch, if there are any."""
        if self._is_native and len(rows):
            return NativeDecodes(*map(torch.from_numpy, (rows, lanes, seq_lens)))
        return decodes_of(rows, lanes, seq_lens)

    def _places(self, slots: Ints) -> tuple[Ints, Ints]:
        """Returns lanes and offsets of slots."""
        blocks, offsets = np.divmod(slots, self._block_size)
        columns, lanes = np.divmod(blocks, self._num_lanes)
        return lanes, columns * self._block_size + offsets

    def _is_straight(self, sequence: Sequence) -> bool:
        table = sequence.block_table
        end = sequence.lane + len(table) * self._num_lanes
        return table == list(range(sequence.lane, end, self._num_lanes))

    def _single(self, batch: RaggedBatch, row: int, is_straight: bool) -> LaneRow:
        context_len, query_len = int(batch.context_lens[row]), int(batch.query_lens[row])
        sequence = batch.scheduled[row].sequence
        where: int | tuple[Tensor, Tensor] = sequence.lane
        if not is_straight:
            places = np.arange(context_len + query_len)
            blocks = np.array(sequence.block_table)[places // self._block_size]
            lanes, offsets = self._places(blocks * self._block_size + places % self._block_size)
            where = torch.from_numpy(lanes), torch.from_numpy(offsets)
        start = int(batch.cu_seqlens_q[row])
        return LaneRow(slice(start, start + query_len), context_len, context_len + query_len, where)

    def _allocate(self, layer: int, key: Tensor, value: Tensor) -> LayerCache:
        def cells(like: Tensor) -> Tensor:
            shape = (self._num_lanes, like.shape[1], self._capacity, like.shape[2])
            # The kernel provides zeros as untouched pages: unused capacity costs no memory.
            return like.new_zeros(shape) if not self._poison else like.new_full(shape, self._poison)

        self._layers[layer] = LayerCache(cells(key), cells(value))
        return self._layers[layer]

    def _reserve(self, num_tokens: int) -> None:
        """Grows the lanes to at least `num_tokens` tokens and copies their content."""
        if num_tokens <= self._capacity:
            return
        self._capacity = min(max(num_tokens, 2 * self._capacity), self._longest)
        for layer, old in self._layers.items():
            like = (each[0].transpose(0, 1) for each in (old.keys, old.values))
            new = self._allocate(layer, *like)
            new.keys[:, :, : old.keys.shape[2]] = old.keys
            new.values[:, :, : old.values.shape[2]] = old.values
