"""Attention in which the bits of a query depend on its own sequence and position alone.

The positions of a sequence are cut into tiles of `TILE`, counted from its beginning. All queries of a
tile are computed together, over all keys up to the end of the tile, whether they are fed in this step
or not: places of others hold zeros. So the position of a query decides about all shapes of its
computation, and neither the chunk that it is fed in nor the other rows of the step do.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from batchproof_paged.dense import attend_dense, visible_keys
from batchproof_paged.kernels import DecodeRows, LayerPass, PrefillRows, Span
from batchproof_paged.torch_kernels import graph_columns, tune, write

__all__ = ["decode", "graph_columns", "prefill", "tune"]

TILE = 8  # positions: few enough for a decode, which computes all of them for one


def decode(given: LayerPass, rows: DecodeRows) -> None:
    """See `Kernels.decode`."""
    places, block_size = rows.seq_lens - 1, given.cache.keys.shape[1]
    blocks = given.tables[rows.lanes, places // block_size].long()
    write(given, slice(len(places)), blocks * block_size + places % block_size)
    pairs = zip(rows.lanes.tolist(), places.tolist(), strict=True)
    for row, (lane, place) in enumerate(pairs):
        _attend(given, Span(lane, row, 1, place))


def prefill(given: LayerPass, rows: PrefillRows) -> None:
    """See `Kernels.prefill`."""
    assert rows.spans is not None, "the options exclude captured steps"
    write(given, slice(-len(rows.slots), None), rows.slots)
    for span in rows.spans:
        _attend(given, span)


def _attend(given: LayerPass, span: Span) -> None:
    """Attends for the tokens of a span, whose keys are all in the cache, tile by tile."""
    query, _, _, cache, tables, form, out = given
    start, end = span.context_len, span.context_len + span.query_len
    blocks = tables[span.lane, : -(-end // cache.keys.shape[1])]
    keys, values = (_padded(each[blocks].flatten(0, 1), end) for each in (cache.keys, cache.values))
    shift = span.start - start  # from a position to its token in the step
    for first in range(start - start % TILE, end, TILE):
        begin, stop = max(first, start), min(first + TILE, end)
        tokens, places = slice(begin + shift, stop + shift), slice(begin - first, stop - first)
        queries = query.new_zeros(TILE, *query.shape[1:])
        queries[places] = query[tokens]
        visible = _visible(first, form.window)
        seen = slice(first + TILE - visible.shape[1], first + TILE)
        attended = attend_dense(
            queries.transpose(0, 1)[None], keys[:, :, seen], values[:, :, seen], form, visible, False
        )
        out[tokens] = attended[0, :, places].transpose(0, 1)


def _padded(cells: Tensor, end: int) -> Tensor:
    """Returns the first `end` of the cells (N, heads, dim), and zeros up to the end of the last tile,
    as (1, heads, keys, dim): what others left behind them may be NaN."""
    padded = cells.new_zeros(end + -end % TILE, *cells.shape[1:])
    padded[:end] = cells[:end]
    return padded.transpose(0, 1)[None]


@lru_cache(maxsize=4096)
def _visible(first: int, window: int | None) -> Tensor:
    """Returns which keys the queries of the tile from position `first` on see, (TILE, keys): those up
    to the end of the tile, without those that are out of the window of all of them."""
    least = 0 if window is None else max(0, first + 1 - window)
    return visible_keys(range(first, first + TILE), range(least, first + TILE), window)
