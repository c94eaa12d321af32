"""The rows of a step on a CPU: which of them are served together, and which get a call of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from batchproof_paged import native
from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import Ints
from batchproof_paged.dense import attend_dense, visible_keys
from batchproof_paged.kernels import LayerCache

# Measured: the overhead of a call for one sequence equals the cost of a thousand keys, and a key costs
# twice as much in the product over all lanes.
CALL_KEYS = 1000
PRODUCT_KEYS = 2


class Decodes(Protocol):
    """Rows of one token each, of straight sequences, which are served together."""

    def attend(self, held: LayerCache, query: Tensor, form: AttentionForm, result: Tensor) -> None:
        """Writes these rows of `result` (T, num_heads, v_dim), given `query` (T, num_heads,
        qk_dim)."""
        ...


@dataclass(frozen=True, slots=True)
class NativeDecodes:
    """Decodes for our own kernel, which reads each row's keys and no others."""

    rows: Tensor  # in the batch, which are tokens as well; int64, as the others
    lanes: Tensor
    seq_lens: Tensor

    def attend(self, held: LayerCache, query: Tensor, form: AttentionForm, result: Tensor) -> None:
        """See `Decodes.attend`."""
        layer = native.Layer.of(held.keys, held.values, query.shape[1], form)
        native.attend(layer, self.rows, self.lanes, self.seq_lens, query, result)


@dataclass(frozen=True, slots=True)
class LaneDecodes:
    """Decodes served by one product of torch over lanes 0 to num_lanes - 1."""

    rows: Tensor  # in the batch, their lanes ascending
    lanes: Tensor
    num_lanes: int
    longest: int  # keys
    seq_lens: Tensor  # (num_lanes, 1): 1 for lanes in between, whose results are not used
    visible: dict[int | None, Tensor] = field(default_factory=dict)  # by window: (num_lanes, longest)
    biases: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def attend(self, held: LayerCache, query: Tensor, form: AttentionForm, result: Tensor) -> None:
        """See `Decodes.attend`."""
        queries = query.new_zeros(self.num_lanes, *query.shape[1:])  # of lanes without a row as well
        queries[self.lanes] = query[self.rows]
        result[self.rows] = self._attended(held, queries, form)[self.lanes]
        self._repair(held, query, form, result)

    def _attended(self, held: LayerCache, query: Tensor, form: AttentionForm) -> Tensor:
        """Attends for all lanes: `query` (num_lanes, num_heads, qk_dim) -> (num_lanes, num_heads,
        v_dim)."""
        keys = held.keys[: self.num_lanes, :, : self.longest]
        values = held.values[: self.num_lanes, :, : self.longest]
        num_lanes, num_heads, head_size = query.shape
        num_kv_heads = keys.shape[1]
        if form.softcap is not None or form.sinks is not None or query.dtype is not torch.float32:
            visible = self.visible_keys(form.window)[:, None, None]
            attended = attend_dense(query[:, :, None], keys, values, form, visible, is_causal=False)
            return attended[:, :, 0]
        grouped = query.reshape(num_lanes * num_kv_heads, num_heads // num_kv_heads, head_size)
        bias = self.bias(form.window, num_kv_heads)
        scores = torch.baddbmm(bias, grouped, keys.flatten(0, 1).transpose(1, 2), alpha=form.scaling)
        shares = scores.softmax(dim=2)
        return torch.bmm(shares, values.flatten(0, 1)).view(num_lanes, num_heads, values.shape[3])

    def _repair(self, held: LayerCache, query: Tensor, form: AttentionForm, result: Tensor) -> None:
        """Recomputes the rows whose result is NaN from their own cells.

        The product reads cells of other sequences too, with weight zero, but zero times NaN is NaN.
        """
        if not math.isnan(result[self.rows].sum()):
            return
        for row, lane in zip(self.rows.tolist(), self.lanes.tolist(), strict=True):
            seq_len = int(self.seq_lens[lane])
            alone = LaneRow(slice(row, row + 1), seq_len - 1, seq_len, lane)
            attend_row(alone, held, query[alone.tokens], form, result[alone.tokens])

    def visible_keys(self, window: int | None) -> Tensor:
        """Returns which keys each lane's query may see, bool (num_lanes, longest)."""
        if window not in self.visible:
            places = torch.arange(self.longest)
            seen = places < self.seq_lens
            self.visible[window] = seen if window is None else seen & (places >= self.seq_lens - window)
        return self.visible[window]

    def bias(self, window: int | None, num_heads: int) -> Tensor:
        """Returns 0 or -inf for each key, float32 (num_lanes * num_heads, 1, longest)."""
        if (window, num_heads) not in self.biases:
            hidden = ~self.visible_keys(window)
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            self.biases[window, num_heads] = bias.repeat_interleave(num_heads, dim=0)[:, None]
        return self.biases[window, num_heads]


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A row that gets a call of its own."""

    tokens: slice  # its fed tokens in the batch
    context_len: int
    seq_len: int
    where: int | tuple[Tensor, Tensor]  # its lane, or lane and offset of each of its tokens
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def first_key(self, window: int | None) -> int:
        """Returns the first key that any of its queries may see."""
        return 0 if window is None else max(0, self.context_len + 1 - window)

    def visible_keys(self, window: int | None) -> Tensor | None:
        """Returns a mask (queries, keys from `first_key` on), or None if all of them are visible."""
        if window not in self.masks:
            keys = range(self.first_key(window), self.seq_len)
            seen = visible_keys(range(self.context_len, self.seq_len), keys, window)
            self.masks[window] = None if bool(seen.all()) else seen
        return self.masks[window]


def worth_batching(seq_lens: Ints, lanes: Ints) -> Ints:
    """Returns which of these sequences to serve by one product, ascending; calls for the others cost
    less.

    The product reads as many keys of every lane as its longest sequence has. So the longest ones are
    taken out one by one for as long as that saves more than the overhead of a call.
    """
    if not len(seq_lens):
        return np.arange(0)
    order = np.argsort(-seq_lens, kind="stable")
    lens = seq_lens[order]
    alone = np.concatenate([[0], (CALL_KEYS + lens).cumsum()])  # the cost of the k longest
    num_lanes = lanes.max() + 1
    together = np.append(CALL_KEYS + PRODUCT_KEYS * num_lanes * lens, 0)  # that of the others
    num_alone = int(np.argmin(alone + together))
    return np.sort(order[num_alone:])


def decodes_of(rows: Ints, lanes: Ints, seq_lens: Ints) -> LaneDecodes | None:
    """Returns the decodes of these rows of the batch, or None if there are none."""
    if not len(rows):
        return None
    num_lanes = int(lanes.max()) + 1
    by_lane = np.ones(num_lanes, dtype=np.int64)
    by_lane[lanes] = seq_lens
    return LaneDecodes(
        torch.from_numpy(rows),
        torch.from_numpy(lanes),
        num_lanes,
        int(seq_lens.max()),
        torch.from_numpy(by_lane)[:, None],
    )


def attend_row(row: LaneRow, held: LayerCache, query: Tensor, form: AttentionForm, out: Tensor) -> None:
    """Attends for one row: `query` (query_len, num_heads, qk_dim); writes `out` (query_len, num_heads,
    v_dim)."""
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
    out[:] = attended[0].transpose(0, 1)


def attend_row_natively(
    row: LaneRow, held: LayerCache, query: Tensor, form: AttentionForm, out: Tensor
) -> None:
    """Does the same as `attend_row` by our own kernel; `out` is contiguous."""
    keys, values, where = held.keys, held.values, row.where
    if not isinstance(where, int):
        lanes, offsets = where
        keys, values = (each[lanes, :, offsets].transpose(0, 1)[None] for each in (keys, values))
        where = 0
    layer = native.Layer.of(keys.contiguous(), values.contiguous(), query.shape[1], form)
    native.attend_span(layer, where, row.context_len, query, out)
