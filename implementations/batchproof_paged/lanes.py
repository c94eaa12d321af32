"""Keys and values on a CPU in float32: one row of a grid per running sequence, read where they lie.

The block manager lays block ids out as a grid of lanes and columns, and gives a sequence the blocks of
its own lane, in order, whenever it can. Here the blocks of a lane lie side by side:

    lane 0   | block 0 | block 3 | block 6 |      keys (num_lanes, num_kv_heads, capacity, qk_dim)
    lane 1   | block 1 | block 4 | block 7 |
    lane 2   | block 2 | block 5 | block 8 |

so a *straight* sequence is a slice: nothing is copied, and one call of a kernel (`native`) serves all
decodes. Keys of a sequence with blocks of other lanes (from the prefix cache, or because its own were
taken) are gathered.
"""

import sys
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchproof_paged import native
from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.kernels import LayerCache
from batchproof_paged.sequence import Sequence


class _Decodes(NamedTuple):
    """Rows of one token each, of straight sequences, which one call serves; all int64."""

    rows: Tensor  # in the batch, which are tokens as well
    lanes: Tensor
    seq_lens: Tensor


class _Span(NamedTuple):
    """A row that gets a call of its own."""

    tokens: slice  # its fed tokens in the batch
    context_len: int
    where: int | tuple[Tensor, Tensor]  # its lane, or lane and offset of each of its tokens


class LanePool:
    """A `Backend` for a CPU.

    Its memory is `num_lanes` times the longest sequence so far, grown by doubling, and never more than
    the block manager's pool.
    """

    def __init__(self, num_lanes: int, block_size: int, num_blocks: int | None = None) -> None:
        num_columns = sys.maxsize if num_blocks is None else -(-num_blocks // num_lanes)
        self._longest = num_columns * block_size
        self._num_lanes = num_lanes
        self._block_size = block_size
        self._capacity = 0  # tokens per lane
        self._layers: dict[int, LayerCache] = {}
        self._writes: tuple[Tensor, Tensor]  # lane and offset of each fed token
        self._decodes: _Decodes | None = None
        self._spans: list[_Span] = []

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self._layers.values())

    def begin(self, batch: RaggedBatch) -> None:
        """Prepares a step: where its keys go, and which decodes one call serves; grows the lanes if
        needed."""
        lanes, offsets = self._places(batch.slot_mapping(self._block_size))
        self._writes = torch.from_numpy(lanes), torch.from_numpy(offsets)
        self._reserve(int(offsets.max()) // self._block_size * self._block_size + self._block_size)
        is_straight = np.array([self._is_straight(each) for each in batch.scheduled.sequences])
        together = np.flatnonzero(is_straight[: batch.num_decodes])
        columns = together, batch.lanes[together], batch.seq_lens[together]
        self._decodes = _Decodes(*map(torch.from_numpy, columns)) if len(together) else None
        alone = np.ones(len(is_straight), dtype=bool)
        alone[together] = False
        self._spans = [
            self._span(batch, row, bool(is_straight[row])) for row in np.flatnonzero(alone).tolist()
        ]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        """Stores the keys and values of the fed tokens and attends; see `Backend.attend`."""
        cells = self._layers.get(layer) or self._allocate(layer, key, value)
        native.store(cells.keys, cells.values, *self._writes, key, value)
        num_heads = query.shape[1]
        out = query.new_empty(*query.shape[:2], value.shape[2])
        if self._decodes is not None:
            whole = native.Layer.of(cells.keys, cells.values, num_heads, form)
            native.attend(whole, *self._decodes, query, out)
        for tokens, context_len, where in self._spans:
            keys, values, lane = cells.keys, cells.values, where
            if not isinstance(lane, int):
                lanes, offsets = lane
                keys, values = (
                    each[lanes, :, offsets].transpose(0, 1)[None].contiguous()
                    for each in (keys, values)
                )
                lane = 0
            own = native.Layer.of(keys, values, num_heads, form)
            native.attend_span(own, lane, context_len, query[tokens], out[tokens])
        return out

    def _places(self, slots: Ints) -> tuple[Ints, Ints]:
        blocks, offsets = np.divmod(slots, self._block_size)
        columns, lanes = np.divmod(blocks, self._num_lanes)
        return lanes, columns * self._block_size + offsets

    def _is_straight(self, sequence: Sequence) -> bool:
        table = sequence.block_table
        end = sequence.lane + len(table) * self._num_lanes
        return table == list(range(sequence.lane, end, self._num_lanes))

    def _span(self, batch: RaggedBatch, row: int, is_straight: bool) -> _Span:
        sequence, context_len, query_len, _ = batch.scheduled[row]
        where: int | tuple[Tensor, Tensor] = sequence.lane
        if not is_straight:
            places = np.arange(context_len + query_len)
            blocks = np.array(sequence.block_table)[places // self._block_size]
            lanes, offsets = self._places(blocks * self._block_size + places % self._block_size)
            where = torch.from_numpy(lanes), torch.from_numpy(offsets)
        start = int(batch.cu_seqlens_q[row])
        return _Span(slice(start, start + query_len), context_len, where)

    def _allocate(self, layer: int, key: Tensor, value: Tensor) -> LayerCache:
        def cells(like: Tensor) -> Tensor:
            # The kernel provides zeros as untouched pages: unused capacity costs no memory.
            return like.new_zeros(self._num_lanes, like.shape[1], self._capacity, like.shape[2])

        self._layers[layer] = LayerCache(cells(key), cells(value))
        return self._layers[layer]

    def _reserve(self, num_tokens: int) -> None:
        if num_tokens <= self._capacity:
            return
        self._capacity = min(max(num_tokens, 2 * self._capacity), self._longest)
        for layer, old in self._layers.items():
            like = (each[0].transpose(0, 1) for each in (old.keys, old.values))
            new = self._allocate(layer, *like)
            new.keys[:, :, : old.keys.shape[2]] = old.keys
            new.values[:, :, : old.values.shape[2]] = old.values
