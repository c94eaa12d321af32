"""Keys and values on a CPU: one row of a grid per running sequence, read as views.

The block manager lays block ids out as a grid of lanes and columns, and gives a sequence the blocks of
its own lane, in order, whenever it can. Here a lane's blocks lie side by side:

    lane 0   | block 0 | block 3 | block 6 |      keys (num_lanes, num_kv_heads, capacity, qk_dim)
    lane 1   | block 1 | block 4 | block 7 |
    lane 2   | block 2 | block 5 | block 8 |

so a *straight* sequence is a slice: nothing is copied, and one batched product serves all decodes. A
sequence with foreign blocks (from the prefix cache, or a pool that was too small) is gathered instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from implementations.paged.attention import AttentionForm
from implementations.paged.batch import Ints, RaggedBatch
from implementations.paged.dense import attend_dense
from implementations.paged.sequence import Sequence

# Measured: a call for one sequence costs as much as a thousand keys do once it runs, and a key costs the
# product over all lanes twice as much.
CALL_KEYS = 1000
PRODUCT_KEYS = 2


@dataclass(frozen=True, slots=True)
class _Layer:
    keys: Tensor  # (num_lanes, num_kv_heads, capacity, qk_dim)
    values: Tensor  # the same with v_dim


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Straight sequences of one token each, served by one product over lanes 0 to num_lanes - 1."""

    rows: Tensor  # in the batch, their lanes ascending
    lanes: Tensor
    num_lanes: int
    longest: int  # keys
    seq_lens: Tensor  # (num_lanes, 1): 1 for the lanes in between, whose results nobody reads
    visible: dict[int | None, Tensor] = field(default_factory=dict)  # by window: (num_lanes, longest)
    biases: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    @property
    def is_dense(self) -> bool:
        return len(self.rows) == self.num_lanes

    def visible_keys(self, window: int | None) -> Tensor:
        if window not in self.visible:
            places = torch.arange(self.longest)
            seen = places < self.seq_lens
            self.visible[window] = seen if window is None else seen & (places >= self.seq_lens - window)
        return self.visible[window]

    def bias(self, window: int | None, num_heads: int) -> Tensor:
        """0 or -inf, (num_lanes * num_heads, 1, longest) of float32."""
        if (window, num_heads) not in self.biases:
            hidden = ~self.visible_keys(window)
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            self.biases[window, num_heads] = bias.repeat_interleave(num_heads, dim=0)[:, None]
        return self.biases[window, num_heads]


@dataclass(frozen=True, slots=True)
class _Single:
    """A row that is served by a call of its own."""

    tokens: slice  # its fed tokens in the batch
    context_len: int
    seq_len: int
    where: int | tuple[Tensor, Tensor]  # its lane, or lane and offset of each of its tokens
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def first_key(self, window: int | None) -> int:
        """The first key that any of its queries may see."""
        return 0 if window is None else max(0, self.context_len + 1 - window)

    def visible_keys(self, window: int | None) -> Tensor | None:
        """(queries, keys from `first_key` on); None: all are."""
        if window not in self.masks:
            queries = torch.arange(self.context_len, self.seq_len)[:, None]
            distance = queries - torch.arange(self.first_key(window), self.seq_len)
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self.masks[window] = None if bool(seen.all()) else seen
        return self.masks[window]


class LanePool:
    """A `Backend` for a CPU. Memory: num_lanes times the longest sequence so far, by doubling, and
    never more than the block manager's pool."""

    def __init__(
        self, num_lanes: int, block_size: int, num_blocks: int | None = None, poison: float = 0.0
    ) -> None:
        num_columns = sys.maxsize if num_blocks is None else -(-num_blocks // num_lanes)
        self._longest = num_columns * block_size
        self._num_lanes = num_lanes
        self._block_size = block_size
        self._poison = poison  # what unused cells hold
        self._capacity = 0  # tokens of a lane
        self._layers: dict[int, _Layer] = {}
        self._writes: tuple[Tensor, Tensor]  # lane and offset of each fed token
        self._decodes: _Decodes | None = None
        self._singles: list[_Single] = []

    @property
    def num_bytes(self) -> int:
        return sum(each.keys.nbytes + each.values.nbytes for each in self._layers.values())

    def poison(self, block_ids: Seq[int], value: float) -> None:
        for block in block_ids:
            column, lane = divmod(block, self._num_lanes)
            cells = slice(column * self._block_size, (column + 1) * self._block_size)
            for layer in self._layers.values():
                layer.keys[lane, :, cells] = value
                layer.values[lane, :, cells] = value

    def begin(self, batch: RaggedBatch) -> None:
        lanes, offsets = self._places(batch.slot_mapping)
        self._writes = torch.from_numpy(lanes), torch.from_numpy(offsets)
        self._reserve(int(offsets.max()) // self._block_size * self._block_size + self._block_size)
        seq_lens = batch.context_lens + batch.query_lens
        is_straight = np.array([self._is_straight(each.sequence) for each in batch.scheduled])
        batched = np.flatnonzero(is_straight[: batch.num_decodes])
        batched = batched[_worth_batching(seq_lens[batched], batch.lanes[batched])]
        self._decodes = _decodes(batched, batch.lanes[batched], seq_lens[batched])
        alone = np.ones(len(seq_lens), dtype=bool)
        alone[batched] = False
        self._singles = [
            self._single(batch, row, bool(is_straight[row])) for row in np.flatnonzero(alone).tolist()
        ]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        held = self._layers.get(layer) or self._allocate(layer, key, value)
        lanes, offsets = self._writes
        held.keys[lanes, :, offsets] = key
        held.values[lanes, :, offsets] = value
        decodes = self._decodes
        if decodes is not None and decodes.is_dense and not self._singles:
            return _attend_decodes(decodes, held, query, form)
        result = query.new_empty(*query.shape[:2], value.shape[2])
        if decodes is not None:
            queries = query.new_zeros(decodes.num_lanes, *query.shape[1:])
            queries[decodes.lanes] = query[decodes.rows]
            attended = _attend_decodes(decodes, held, queries, form)
            result[decodes.rows] = attended[decodes.lanes]
        for row in self._singles:
            result[row.tokens] = _attend_single(row, held, query[row.tokens], form)
        return result

    def _places(self, slots: Ints) -> tuple[Ints, Ints]:
        """Lane and offset of slots."""
        blocks, offsets = np.divmod(slots, self._block_size)
        columns, lanes = np.divmod(blocks, self._num_lanes)
        return lanes, columns * self._block_size + offsets

    def _is_straight(self, sequence: Sequence) -> bool:
        table = sequence.block_table
        end = sequence.lane + len(table) * self._num_lanes
        return table == list(range(sequence.lane, end, self._num_lanes))

    def _single(self, batch: RaggedBatch, row: int, is_straight: bool) -> _Single:
        context_len, query_len = int(batch.context_lens[row]), int(batch.query_lens[row])
        sequence = batch.scheduled[row].sequence
        where: int | tuple[Tensor, Tensor] = sequence.lane
        if not is_straight:
            places = np.arange(context_len + query_len)
            blocks = np.array(sequence.block_table)[places // self._block_size]
            lanes, offsets = self._places(blocks * self._block_size + places % self._block_size)
            where = torch.from_numpy(lanes), torch.from_numpy(offsets)
        start = int(batch.cu_seqlens_q[row])
        return _Single(slice(start, start + query_len), context_len, context_len + query_len, where)

    def _allocate(self, layer: int, key: Tensor, value: Tensor) -> _Layer:
        def cells(like: Tensor) -> Tensor:
            shape = (self._num_lanes, like.shape[1], self._capacity, like.shape[2])
            # Zeros come as untouched pages: what no sequence reaches costs no memory.
            return like.new_zeros(shape) if not self._poison else like.new_full(shape, self._poison)

        self._layers[layer] = _Layer(cells(key), cells(value))
        return self._layers[layer]

    def _reserve(self, num_tokens: int) -> None:
        """Make the lanes long enough."""
        if num_tokens <= self._capacity:
            return
        self._capacity = min(max(num_tokens, 2 * self._capacity), self._longest)
        for layer, old in self._layers.items():
            like = (each[0].transpose(0, 1) for each in (old.keys, old.values))
            new = self._allocate(layer, *like)
            new.keys[:, :, : old.keys.shape[2]] = old.keys
            new.values[:, :, : old.values.shape[2]] = old.values


def _worth_batching(seq_lens: Ints, lanes: Ints) -> Ints:
    """Which of these sequences to serve by one product, ascending; the others are cheaper alone.

    The product reads as many keys of every lane as its longest sequence has, so the longest are taken
    out one by one for as long as that saves more than a call.
    """
    if not len(seq_lens):
        return np.arange(0)
    order = np.argsort(-seq_lens, kind="stable")
    lens = seq_lens[order]
    alone = np.concatenate([[0], (CALL_KEYS + lens).cumsum()])  # cost of the k longest
    num_lanes = lanes.max() + 1
    together = np.append(CALL_KEYS + PRODUCT_KEYS * num_lanes * lens, 0)  # of those after them
    num_alone = int(np.argmin(alone + together))
    return np.sort(order[num_alone:])


def _decodes(rows: Ints, lanes: Ints, seq_lens: Ints) -> _Decodes | None:
    if not len(rows):
        return None
    num_lanes = int(lanes.max()) + 1
    by_lane = np.ones(num_lanes, dtype=np.int64)
    by_lane[lanes] = seq_lens
    return _Decodes(
        torch.from_numpy(rows),
        torch.from_numpy(lanes),
        num_lanes,
        int(seq_lens.max()),
        torch.from_numpy(by_lane)[:, None],
    )


def _attend_decodes(decodes: _Decodes, held: _Layer, query: Tensor, form: AttentionForm) -> Tensor:
    """`query` (num_lanes, num_heads, qk_dim) -> (num_lanes, num_heads, v_dim)."""
    keys = held.keys[: decodes.num_lanes, :, : decodes.longest]
    values = held.values[: decodes.num_lanes, :, : decodes.longest]
    num_lanes, num_heads, head_size = query.shape
    num_kv_heads = keys.shape[1]
    if form.softcap is not None or form.sinks is not None or query.dtype is not torch.float32:
        visible = decodes.visible_keys(form.window)[:, None, None]
        return attend_dense(query[:, :, None], keys, values, form, visible, is_causal=False)[:, :, 0]
    grouped = query.reshape(num_lanes * num_kv_heads, num_heads // num_kv_heads, head_size)
    bias = decodes.bias(form.window, num_kv_heads)
    scores = torch.baddbmm(bias, grouped, keys.flatten(0, 1).transpose(1, 2), alpha=form.scaling)
    shares = scores.softmax(dim=2)
    return torch.bmm(shares, values.flatten(0, 1)).view(num_lanes, num_heads, values.shape[3])


def _attend_single(row: _Single, held: _Layer, query: Tensor, form: AttentionForm) -> Tensor:
    """`query` (query_len, num_heads, qk_dim) -> (query_len, num_heads, v_dim)."""
    first = row.first_key(form.window)
    if isinstance(row.where, int):
        keys = held.keys[row.where, :, first : row.seq_len]
        values = held.values[row.where, :, first : row.seq_len]
    else:
        lanes, offsets = (each[first:] for each in row.where)
        keys = held.keys[lanes, :, offsets].transpose(0, 1)
        values = held.values[lanes, :, offsets].transpose(0, 1)
    queries = query.transpose(0, 1)
    is_plain = form.window is None or row.seq_len <= form.window
    is_causal = row.context_len == 0 and is_plain
    visible = None if is_causal else row.visible_keys(form.window)
    attended = attend_dense(queries[None], keys[None], values[None], form, visible, is_causal)
    return attended[0].transpose(0, 1)
