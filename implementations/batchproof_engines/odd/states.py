"""Unusual ways to carry recurrent states: recomputed, or fed otherwise."""

from collections.abc import Hashable, Iterator
from itertools import accumulate

import torch
from torch import Tensor

from batchproof_engines.odd.computing import from_the_start
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import SchedulerOutput
from batchproof_engines.ragged_paged.states import Piece, StatefulEngine


@odd
class OneRowAtATime(StatefulEngine):
    """Each row of a step is a pass of its own, so states are never stacked."""

    def kind(self, piece: Piece) -> Hashable:
        return piece.row


@odd
class PromptsTokenByToken(StatefulEngine):
    """No pass has more than one token of a sequence, not even at the start of its prompt."""

    def pieces(self, piece: Piece) -> Iterator[Piece]:
        for whole in super().pieces(piece):
            for start in range(whole.context_len, whole.end):
                yield whole._replace(context_len=start, query_len=1)


@odd
class RecomputedFromTheStart(StatefulEngine):
    """No state is kept from step to step: each feeds all tokens of its sequences again."""

    def kind(self, piece: Piece) -> Hashable:
        return piece.query_len, piece.context_len

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._packed_logits(from_the_start(plan))
        ends = accumulate(row.context_len + row.query_len for row in plan.rows)
        pairs = zip(plan.rows, ends, strict=True)
        return torch.cat([logits[end - row.query_len : end] for row, end in pairs])


@odd
class CachesInReverse(StatefulEngine):
    """Sequences stand in reverse order in every pass, and their states with them."""

    def groups(self, pieces: list[Piece]) -> list[list[Piece]]:
        return [group[::-1] for group in super().groups(pieces)]
