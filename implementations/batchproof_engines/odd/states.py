"""Unusual ways to carry recurrent states: recomputed, kept elsewhere, fed otherwise."""

import io
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import SchedulerOutput
from batchproof_engines.ragged_paged.states import Piece, StatefulEngine, States, StatesByLane


@odd
class OneRowAtATime(StatefulEngine):
    """Each row of a step is a pass of its own, so states are never stacked."""

    def kind(self, piece: Piece) -> Hashable:
        return piece.row


@odd
class PairsOfRows(StatefulEngine):
    """Rows are fed by twos, and which two are together changes from step to step."""

    def groups(self, pieces: list[Piece]) -> list[list[Piece]]:
        groups = super().groups(pieces)
        return [group[first : first + 2] for group in groups for first in range(0, len(group), 2)]


@odd
class TheLastGroupFirst(StatefulEngine):
    """The prompts of a step are fed before its decodes."""

    def groups(self, pieces: list[Piece]) -> list[list[Piece]]:
        return super().groups(pieces)[::-1]


@odd
class PromptsTokenByToken(StatefulEngine):
    """No pass has more than one token of a sequence, not even at the start of its prompt."""

    length = 1

    def pieces(self, piece: Piece) -> Iterator[Piece]:
        for whole in super().pieces(piece):
            for start in range(whole.context_len, whole.end, self.length):
                yield whole._replace(context_len=start, query_len=min(self.length, whole.end - start))


@odd
class PromptsInStretches(PromptsTokenByToken):
    """A prompt is fed in stretches of at most eight tokens within its step."""

    length = 8


@odd
class GroupsOfEvenAndOddLengths(StatefulEngine):
    """Rows share a pass only if their contexts are both even or both odd."""

    def kind(self, piece: Piece) -> Hashable:
        return super().kind(piece), piece.context_len % 2


@odd
class RecomputedFromTheStart(StatefulEngine):
    """No state is kept from step to step: each feeds all tokens of its sequences again."""

    def kind(self, piece: Piece) -> Hashable:
        return piece.query_len, piece.context_len

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        lens = [row.context_len + row.query_len for row in plan.rows]
        sequences = [sequence for sequence, _ in plan.scheduled]
        rows = [
            replace(row, context_len=0, query_len=num) for row, num in zip(plan.rows, lens, strict=True)
        ]
        scheduled = tuple(zip(sequences, lens, strict=True))
        logits = super()._packed_logits(replace(plan, scheduled=scheduled, rows=tuple(rows)))
        pairs = zip(plan.rows, accumulate(lens), strict=True)
        return torch.cat([logits[end - row.query_len : end] for row, end in pairs])


@odd
class KeptAsBytes(StatesByLane):
    """Between passes the states of each sequence are bytes, as in a file, and not in the lanes."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[int, io.BytesIO] = {}  # by lane

    def read(self, group: list[Piece]) -> States | None:
        for piece in group:
            file = self._files.pop(piece.lane, None)
            if file is not None and piece.lane not in self.lanes:
                file.seek(0)
                self.lanes[piece.lane] = torch.load(file, weights_only=False)
        return super().read(group)

    def write(self, group: list[Piece], states: States) -> None:
        super().write(group, states)
        for piece in group:
            file = self._files[piece.lane] = io.BytesIO()
            torch.save(self.lanes.pop(piece.lane), file)


@odd
class CachesInReverse(StatefulEngine):
    """Sequences stand in reverse order in every pass, and their states with them."""

    def groups(self, pieces: list[Piece]) -> list[list[Piece]]:
        return [group[::-1] for group in super().groups(pieces)]
