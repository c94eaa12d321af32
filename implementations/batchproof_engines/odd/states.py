"""Unusual ways to carry recurrent states: recomputed, copied, moved, kept elsewhere, fed otherwise."""

from __future__ import annotations

import io
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from batchproof_engines.odd.oddity import odd
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.row_caches import RowCaches
from batchproof_paged.rows import Rows, Scheduled


@odd
class OneRowAtATime(CachedRunner):
    """Each row of a step is a pass of its own, so states are never stacked."""

    def _kind(self, row: Scheduled) -> Hashable:
        return row.sequence.lane


@odd
class PairsOfRows(CachedRunner):
    """Rows are fed by twos, and whoever is beside whom changes from step to step."""

    def _groups(self, rows: Rows) -> list[Rows]:
        return [
            group.picked(range(first, min(first + 2, len(group))))
            for group in super()._groups(rows)
            for first in range(0, len(group), 2)
        ]


@odd
class TheLastGroupFirst(CachedRunner):
    """The prompts of a step are fed before its decodes."""

    def _groups(self, rows: Rows) -> list[Rows]:
        return super()._groups(rows)[::-1]


@odd
class PromptsTokenByToken(CachedRunner):
    """No pass has more than one token of a sequence, not even at the start of its prompt."""

    def _pieces(self, row: Scheduled) -> Iterator[Scheduled]:
        for piece in super()._pieces(row):
            yield from _stretches(piece, 1)


@odd
class PromptsInStretches(CachedRunner):
    """A prompt is fed in stretches of at most eight tokens within its step."""

    def _pieces(self, row: Scheduled) -> Iterator[Scheduled]:
        for piece in super()._pieces(row):
            yield from _stretches(piece, 8)


def _stretches(piece: Scheduled, length: int) -> Iterator[Scheduled]:
    sequence, context_len, query_len, is_sampled = piece
    for place in range(0, query_len, length):
        is_last = place + length >= query_len
        num = min(length, query_len - place)
        yield Scheduled(sequence, context_len + place, num, is_sampled and is_last)


@odd
class RecomputedFromTheStart(CachedRunner):
    """No state is kept from step to step: each feeds all tokens of its sequences again."""

    def _kind(self, row: Scheduled) -> Hashable:
        return row.context_len + row.query_len

    def _run(self, batch: RaggedBatch) -> Tensor:
        whole = [
            Scheduled(sequence, 0, context + query, is_sampled)
            for sequence, context, query, is_sampled in batch.scheduled
        ]
        logits = super()._run(RaggedBatch.of(Rows.of(whole)))
        for sequence, _, query_len, _ in batch.scheduled.picked(batch.scored_rows):
            pieces = self._scored[sequence.request_id]
            pieces[-1] = pieces[-1][-query_len:]
        return logits


@odd
class AlwaysInAFreshCopy(RowCaches):
    """States are copied before each pass, so that none is ever changed in place."""

    def gathered(self, rows: Rows) -> Any:
        return self.joined([(super().gathered(rows), list(range(len(rows))))])


@odd
class EachInACacheOfItsOwn(RowCaches):
    """After each pass the states are taken apart, a cache for each sequence."""

    def keep(self, rows: Rows, cache: Any) -> None:
        for place in range(len(rows)):
            super().keep(rows.picked([place]), self.joined([(cache, [place])]))


@odd
class KeptAsBytes(RowCaches):
    """Between passes the states are bytes, as in a file."""

    def gathered(self, rows: Rows) -> Any:
        cache = super().gathered(rows)
        cache.seek(0)
        return torch.load(cache, weights_only=False)

    def joined(self, parts: list[tuple[Any, list[int]]]) -> Any:
        loaded = []
        for kept, rows in parts:
            kept.seek(0)
            loaded.append((torch.load(kept, weights_only=False), rows))
        return self._bytes(super().joined(loaded))

    def keep(self, rows: Rows, cache: Any) -> None:
        super().keep(rows, self._bytes(cache))

    def _bytes(self, cache: Any) -> io.BytesIO:
        stream = io.BytesIO()
        torch.save(cache, stream)
        return stream


@odd
class CachesInReverse(RowCaches):
    """The caches of prompts fed together are kept in reverse order, and their sequences with them."""

    def keep(self, rows: Rows, cache: Any) -> None:
        places = list(range(len(rows)))[::-1]
        super().keep(rows.picked(places), self.joined([(cache, places)]))
