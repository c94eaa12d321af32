"""Keys and values in a pool of blocks on any device, read through block tables.

    tables (num_lanes + 1, columns)           keys (capacity, block_size, num_kv_heads, qk_dim)
    lane 0   | 3 | 1 | . |                    0  trash
    lane 1   | 2 | . | . |                    1  block 0
    trash    | 0 | 0 | 0 |                    2  block 1 ...

The tables live on the device. A step sends only what has changed in them, together with its own rows,
in one copy. Padding rows of a captured step belong to the lane beyond the last: they write to the
trash block, which no sequence owns.
"""

import numpy as np
import torch
from torch import Tensor

from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.kernels import (
    DecodeRows,
    LayerCache,
    LayerPass,
    PrefillRows,
    Span,
    StepRows,
    load_kernels,
)
from batchproof_paged.staging import Staging

SHARE_OF_FREE_MEMORY = 0.5  # others live on the device too
TRASH = 0  # where the trash block is stored; block b is stored at b + 1


def stored(block: int) -> int:
    return block + TRASH + 1


class BlockPool:
    """A `Backend` for any device.

    `num_blocks` None: it grows by a quarter when a block beyond its end turns up, unless `reserve` made
    room before. Tables start `num_columns` wide and double. Whenever tensors have moved `generation`
    grows: graphs are void.
    """

    def __init__(
        self,
        num_lanes: int,
        block_size: int,
        num_blocks: int | None = None,
        poison: float = 0.0,
        *,
        device: torch.device,
        kernels: str = "torch",
        num_columns: int = 16,
    ) -> None:
        self.generation = 0
        self._num_lanes = num_lanes
        self._block_size = block_size
        self._capacity = (num_lanes if num_blocks is None else num_blocks) + 1  # with the trash block
        self._is_fixed = num_blocks is not None
        self._poison = poison  # what unused cells hold
        self._kernels = load_kernels(kernels)
        self._staging = Staging(device)
        self._tables = torch.full((num_lanes + 1, num_columns), TRASH, dtype=torch.int32, device=device)
        # What each lane's row holds: the first so many blocks of this very list.
        self._known: list[tuple[list[int], int]] = [([], 0)] * num_lanes
        self.layers: dict[int, LayerCache] = {}  # in the order in which they attend
        self._rows: StepRows

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.layers.values())

    @property
    def trash_lane(self) -> int:
        return self._num_lanes

    @torch.inference_mode()
    def begin(self, batch: RaggedBatch) -> None:
        cells, blocks = self._table_changes(batch)
        num, seq_lens = batch.num_decodes, batch.seq_lens
        slots = self.slots_of(batch, num)
        arrays = (slots, batch.lanes, batch.context_lens, seq_lens, batch.cu_seqlens_q, cells, blocks)
        slots_, lanes, context_lens, lens, starts, cells_, blocks_ = self._staging.send(*arrays)
        self._write_tables(cells_, blocks_)
        num_columns = self._num_columns(int(seq_lens.max()))
        decodes = prefills = None
        if num:
            decodes = DecodeRows(lanes[:num], lens[:num], num_columns)
        if num < len(seq_lens):
            rows = lanes[num:], context_lens[num:], starts[num:]
            prefills = PrefillRows(*rows, num_columns, slots_, _spans(batch))
        self._rows = StepRows(decodes, prefills)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        if layer not in self.layers:
            self.allocate(layer, key, value)
        cache, rows = self.layers[layer], self._rows
        out = query.new_empty(*query.shape[:2], value.shape[2])
        given = LayerPass(query, key, value, cache, self._tables, form, out)
        if rows.decodes is not None:
            self._kernels.decode(given, rows.decodes)
        if rows.prefills is not None:
            self._kernels.prefill(given, rows.prefills)
        return out

    @torch.inference_mode()
    def reserve(self, seq_len: int) -> None:
        """Make room, once layers have attended, for sequences of `seq_len` tokens in all lanes, as far
        as `SHARE_OF_FREE_MEMORY` reaches. A pool of a given size has its room already."""
        if self._is_fixed:
            return
        wanted = self._num_lanes * self._num_columns(seq_len) + 1
        memory = int(SHARE_OF_FREE_MEMORY * free_bytes(self._tables.device))
        fitting = memory * self._capacity // max(1, self.num_bytes)
        if self._capacity < min(wanted, fitting):
            self._grow(min(wanted, fitting))

    # For captured steps, which bring tensors of their own:

    @torch.inference_mode()
    def update_tables(self, batch: RaggedBatch) -> None:
        """What `begin` does to the tables, and no more."""
        cells, blocks = self._table_changes(batch)
        if len(cells):
            self._write_tables(*self._staging.send(cells, blocks))

    def begin_static(self, rows: StepRows) -> None:
        """Attend to these rows until the next `begin`; their tensors may change between steps."""
        self._rows = rows

    def graph_columns(self, seq_len: int) -> int:
        """For how many columns of the tables to capture a step whose rows have up to `seq_len` keys.

        Few distinct results mean few graphs. Where all columns are gathered, it is a power of two, so
        that at most twice the necessary keys are read.
        """
        width = self._tables.shape[1]
        if not self._kernels.gathers:
            return width
        return min(1 << (self._num_columns(seq_len) - 1).bit_length(), width)

    def padding_rows(self, num_rows: int) -> StepRows:
        zeros = self._tables.new_zeros(num_rows, dtype=torch.int64)
        return StepRows(DecodeRows(zeros + self.trash_lane, zeros, 1), None)

    def slots_of(self, batch: RaggedBatch, first_row: int) -> Ints:
        """Where in the flattened pool the keys of the rows from `first_row` on go."""
        return batch.slot_mapping(self._block_size, first_row) + (TRASH + 1) * self._block_size

    def _num_columns(self, seq_len: int) -> int:
        return -(-seq_len // self._block_size)

    def _table_changes(self, batch: RaggedBatch) -> tuple[Ints, Ints]:
        """Cells of the flattened tables, and the stored blocks they should hold: what is not there yet.

        A table that a sequence goes on with gets its new end. Any other is a newcomer's, and written
        whole: what is left behind its end is never read.
        """
        tables = [sequence.block_table for sequence in batch.scheduled.sequences]
        self._reserve_columns(max(map(len, tables), default=0))
        width = self._tables.shape[1]
        cells: list[int] = []
        blocks: list[int] = []
        for lane, table in zip(batch.lanes.tolist(), tables, strict=True):
            known, first = self._known[lane]
            if known is not table:
                first = 0
            if first < len(table):
                row = lane * width
                cells += range(row + first, row + len(table))
                blocks += table[first:]
                self._known[lane] = table, len(table)
        self.reserve_blocks(max(blocks, default=0))
        return np.array(cells, dtype=np.int64), np.array(blocks, dtype=np.int64) + 1

    def _write_tables(self, cells: Tensor, blocks: Tensor) -> None:
        self._tables.view(-1)[cells] = blocks.int()

    def _reserve_columns(self, num_columns: int) -> None:
        old = self._tables
        if num_columns <= old.shape[1]:
            return
        width = max(num_columns, 2 * old.shape[1])
        self._tables = old.new_full((len(old), width), TRASH)
        self._tables[:, : old.shape[1]] = old
        self.generation += 1

    def reserve_blocks(self, highest: int) -> None:
        """Makes room for the blocks up to this one."""
        if highest + 1 < self._capacity:
            return
        assert not self._is_fixed, f"block {highest} is beyond the pool's {self._capacity - 1} blocks"
        self._grow(max(highest + 2, self._capacity * 5 // 4))  # memory may be short

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        for layer, old in self.layers.items():
            new = self.allocate(layer, old.keys[0], old.values[0])
            new.keys[: len(old.keys)] = old.keys
            new.values[: len(old.values)] = old.values
        self.generation += 1

    def allocate(self, layer: int, key: Tensor, value: Tensor) -> LayerCache:
        """Makes the cells of a layer that attends for the first time, or anew; key and value (T, heads,
        dim) show of which shape and kind."""

        def cells(like: Tensor) -> Tensor:
            shape = (self._capacity, self._block_size, *like.shape[1:])
            return like.new_full(shape, self._poison) if self._poison else like.new_zeros(shape)

        self.layers[layer] = LayerCache(cells(key), cells(value))
        return self.layers[layer]


def free_bytes(device: torch.device) -> int:
    """Of the device's memory, with what torch holds and does not use; where it does not say, a GiB."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return 1 << 30


def _spans(batch: RaggedBatch) -> tuple[Span, ...]:
    columns = (batch.lanes, batch.cu_seqlens_q[:-1], batch.query_lens, batch.context_lens)
    rows = zip(*(each[batch.num_decodes :].tolist() for each in columns), strict=True)
    return tuple(Span(*row) for row in rows)
