"""Keys and values on a CPU in float32: one row of a grid per running sequence, read where they lie.

The block manager lays block ids out as a grid of lanes and columns, and gives a sequence the blocks of
its own lane, in order, whenever it can. Here the blocks of a lane lie side by side:

    lane 0   | block 0 | block 3 | block 6 |
    lane 1   | block 1 | block 4 | block 7 |
    lane 2   | block 2 | block 5 | block 8 |

so a *straight* sequence is a slice, and nothing is copied. Of a sequence with blocks of other lanes
(from the prefix cache, or because its own were taken) the kernel is told the place of every key.
"""

import sys

import numpy as np
import torch
from torch import Tensor

from batchproof_paged import native
from batchproof_paged.attention import Asked, AttentionForm
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.kernels import LayerCache
from batchproof_paged.native import PANEL
from batchproof_paged.sequence import Sequence

NOTHING: Ints = np.empty((0, 0), dtype=np.int64)


class LanePool:
    """A `Backend` for a CPU.

    Its memory is `num_lanes` times the longest sequence so far, grown by doubling, and never more than
    the block manager's pool, but for the padding to whole panels.
    """

    def __init__(self, num_lanes: int, block_size: int, num_blocks: int | None = None) -> None:
        num_columns = sys.maxsize if num_blocks is None else -(-num_blocks // num_lanes)
        self._longest = num_columns * block_size
        self._num_lanes = num_lanes
        self._block_size = block_size
        self.capacity = 0  # tokens per lane
        self._layers: dict[int, LayerCache] = {}
        self.tokens: native.Tokens  # of the step
        self.longest_seq_len = 0  # in it

    def begin(self, batch: RaggedBatch) -> None:
        """Prepares a step: where its keys are and go; grows the lanes if needed."""
        rows, seq_lens = batch.scheduled, batch.seq_lens
        apart = [row for row, each in enumerate(rows.sequences) if not self._is_straight(each)]
        blocks = [np.array(rows.sequences[row].block_table) for row in apart]
        self.longest_seq_len = int(seq_lens.max())
        self._reserve(max([self.longest_seq_len, *map(self._end, blocks)]))
        tables: Ints | int = -1
        scattered = NOTHING
        if apart:
            tables = np.full(len(rows), -1)
            tables[apart] = np.arange(len(apart))
            scattered = np.zeros((len(apart), seq_lens[apart].max()), dtype=np.int64)
            for places, each, row in zip(scattered, blocks, apart, strict=True):
                places[: seq_lens[row]] = self._places(each, int(seq_lens[row]))
        lanes = batch.lanes
        if batch.num_decodes < len(rows):
            lanes = np.repeat(lanes, batch.query_lens)
            tables = np.repeat(tables, batch.query_lens) if apart else tables
        positions = batch.position_ids
        columns = np.empty((3, len(positions)), dtype=np.int64)
        np.multiply(lanes, self.capacity, out=columns[0])
        columns[0] += positions
        np.add(positions, 1, out=columns[1])
        columns[2] = tables
        if apart:
            are_apart = columns[2] >= 0
            columns[0, are_apart] = scattered[columns[2, are_apart], positions[are_apart]]
        self.tokens = native.Tokens.of(columns, scattered)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        out = query.new_empty(*query.shape[:2], value.shape[2])
        cells = self.layer(layer, Asked.of(query, key, value, form))
        native.attend(cells, self.tokens, query, key, value, out)
        return out

    def layer(self, index: int, asked: Asked) -> native.Layer:
        """Returns the cells of a layer, of which there are `capacity` tokens in each lane."""
        num_heads, num_kv_heads, key_size, value_size, form = asked
        cells = self._layers.get(index) or self._allocate(index, num_kv_heads, key_size, value_size)
        return native.Layer.of(cells.keys, cells.values, value_size, num_heads, form)

    def _places(self, blocks: Ints, num_tokens: int) -> Ints:
        """(num_tokens,) where the keys of a sequence with these blocks are."""
        columns, lanes = np.divmod(blocks, self._num_lanes)
        starts = lanes * self.capacity + columns * self._block_size
        return (starts[:, None] + np.arange(self._block_size)).flatten()[:num_tokens]

    def _end(self, blocks: Ints) -> int:
        return (int(blocks.max()) // self._num_lanes + 1) * self._block_size

    def _is_straight(self, sequence: Sequence) -> bool:
        table = sequence.block_table
        end = sequence.lane + len(table) * self._num_lanes
        return table == list(range(sequence.lane, end, self._num_lanes))

    def _allocate(self, index: int, num_kv_heads: int, key_size: int, value_size: int) -> LayerCache:
        # The kernel provides zeros as untouched pages: unused capacity costs no memory.
        lanes = self._num_lanes, num_kv_heads
        keys = torch.zeros(*lanes, self.capacity // PANEL, key_size, PANEL)
        values = torch.zeros(*lanes, self.capacity, -(-value_size // PANEL) * PANEL)
        self._layers[index] = LayerCache(keys, values)
        return self._layers[index]

    def _reserve(self, num_tokens: int) -> None:
        if num_tokens <= self.capacity:
            return
        most = min(max(num_tokens, 2 * self.capacity), self._longest)
        self.capacity = -(-most // PANEL) * PANEL
        for index, old in self._layers.items():
            new = self._allocate(index, old.keys.shape[1], old.keys.shape[3], old.values.shape[3])
            new.keys[:, :, : old.keys.shape[2]] = old.keys
            new.values[:, :, : old.values.shape[2]] = old.values
