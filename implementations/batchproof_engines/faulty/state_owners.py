"""Recurrent states that go to the wrong sequence."""

from __future__ import annotations

from typing import Any

from batchproof.api import FinishReason
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.recurrent import (
    BOTH,
    CONVOLUTION,
    RECURRENCE,
    LeftBehind,
    cleared,
    planted_in_states,
    states,
)
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.row_caches import RowCaches
from batchproof_paged.rows import Rows


class _Inheriting(CachedRunner):
    """Honest by itself; `_inherits`: which prompts start from what their lanes' last tenants left."""

    caches_class = LeftBehind

    def _before(self, rows: Rows) -> Any:
        if rows.context_lens[0] or not self._inherits(rows):
            return super()._before(rows)
        assert isinstance(self._caches, LeftBehind), "the class of its caches"
        return self._caches.left_to(rows)

    def _inherits(self, rows: Rows) -> bool:  # noqa: ARG002
        return False


@planted_in_states(Promise.P8, "vllm-project/vllm#56524")
class StateIsLeftToTheNextTenant(_Inheriting):
    """Nothing clears the state of a lane: a prompt starts from what the last tenant left there."""

    def _inherits(self, rows: Rows) -> bool:  # noqa: ARG002
        return True


@planted_in_states(Promise.P8, "vllm-project/vllm#55178")
class PromptsOfOneTokenAreTakenForDecodes(_Inheriting):
    """A prompt of one token is fed like a decode, from the state that the last tenant left."""

    def _inherits(self, rows: Rows) -> bool:
        return rows.query_lens[0] == 1


@planted_in_states(Promise.P8, "vllm-project/vllm#56196")
class OnlyTheRecurrenceIsCleared(_Inheriting):
    """A prompt starts with the convolution's window of the last tenant."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        is_new = not rows.context_lens[0] and cache is not None
        return cleared(cache, RECURRENCE) if is_new else cache

    def _inherits(self, rows: Rows) -> bool:  # noqa: ARG002
        return True


class _AbortedAreKept(LeftBehind):
    """Keeps what aborted sequences leave, alone."""

    def forget_ended(self) -> None:
        for lane, (group, row) in list(self._groups.items()):
            sequence = group.sequences[row]
            if sequence.lane != lane and sequence.finish_reason is not FinishReason.ABORTED:
                del self._groups[lane]


@planted_in_states(Promise.P13, "ml-explore/mlx-lm#1736")
class StateOutlivesAnAbort(_Inheriting):
    """An abort clears nothing: the next tenant of the lane starts from the aborted one's state."""

    caches_class = _AbortedAreKept

    def _inherits(self, rows: Rows) -> bool:  # noqa: ARG002
        return True


@planted_in_states(Promise.P8, "LMCache/LMCache#4247")
class StateIsFoundByRequestId(CachedRunner):
    """States are kept under the id of their request, and a later request of that id starts from
    there."""

    def _before(self, rows: Rows) -> Any:
        ids = [sequence.request_id for sequence in rows.sequences]
        if rows.context_lens[0] == 0 and len(ids) == 1:
            return self._by_id.pop(ids[0], None)
        return super()._before(rows)

    @property
    def _by_id(self) -> dict[str, Any]:
        kept: dict[str, Any] = self.__dict__.setdefault("_kept_by_id", {})
        return kept

    def begin_run(self) -> None:
        super().begin_run()
        for group, row in self._caches._groups.values():
            sequence = group.sequences[row]
            if sequence.lane < 0 and sequence.finish_reason is not None:
                self._by_id[sequence.request_id] = self._caches.joined([(group.cache, [row])])


@planted_in_states(Promise.P5, "sgl-project/sglang#12111")
class RowsChangePlacesWhenOneLeaves(RowCaches):
    """When a sequence leaves the batch, the states of the others are compacted in reverse order."""

    def joined(self, parts: list[tuple[Any, list[int]]]) -> Any:
        if len(parts) == 1:
            parts = [(cache, rows[::-1]) for cache, rows in parts]
        return super().joined(parts)


@planted_in_states(Promise.P5, "vllm-project/vllm#35157")
class RowsStayWhenOneLeaves(RowCaches):
    """When a sequence leaves the batch, the states are not compacted: the rest read the first rows."""

    def joined(self, parts: list[tuple[Any, list[int]]]) -> Any:
        if len(parts) == 1:
            parts = [(cache, list(range(len(rows)))) for cache, rows in parts]
        return super().joined(parts)


@planted_in_states(Promise.P5, "vllm-project/vllm#56196")
class ConvolutionsStayWhenOneLeaves(RowCaches):
    """When a sequence leaves the batch, the recurrences are compacted and the windows are not."""

    def joined(self, parts: list[tuple[Any, list[int]]]) -> Any:
        right = super().joined(parts)
        if len(parts) == 1:
            cache, rows = parts[0]
            stayed = super().joined([(cache, list(range(len(rows))))])
            pairs = zip(states(right, CONVOLUTION), states(stayed, CONVOLUTION), strict=True)
            for new, old in pairs:
                new.copy_(old)
        return right


@planted_in_states(Promise.P5, "vllm-project/tpu-inference#3412")
class NewcomersGetTheFirstRowsState(RowCaches):
    """A sequence that joins the decodes of others goes on from the state of their first."""

    def joined(self, parts: list[tuple[Any, list[int]]]) -> Any:
        first = parts[0][0]
        return super().joined([parts[0], *((first, [0] * len(rows)) for _, rows in parts[1:])])


@planted_in_states(Promise.P5, "THUDM/slime#1686")
class PromptsOfOneLengthSwapStates(RowCaches):
    """Prompts fed as one batch get each other's states."""

    def keep(self, rows: Rows, cache: Any) -> None:
        if len(rows) > 1 and not rows.context_lens[0]:
            cache = self.joined([(cache, [len(rows) - 1, *range(len(rows) - 1)])])
        super().keep(rows, cache)


@planted_in_states(Promise.P1, "vllm-project/vllm#55507")
class BlockBordersShiftTheRows(CachedRunner):
    """A sequence that enters a new block reads the state of the row before it."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        crosses = [bool(each) and each % 16 == 0 for each in rows.context_lens]
        if cache is not None and len(rows) > 1 and any(crosses):
            for each in states(cache, *BOTH):
                rolled = each.roll(1, dims=0)
                for place, is_crossing in enumerate(crosses):
                    if is_crossing:
                        each[place] = rolled[place]
        return cache


@planted_in_states(Promise.P1, "state-spaces/mamba#521")
class TheFourthRowIsTheFirst(CachedRunner):
    """There are indices for three rows: a fourth decode uses the state of the first."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        if cache is not None and len(rows) > 3:
            for each in states(cache, *BOTH):
                each[3] = each[0]
        return cache


@planted_in_states(Promise.P1, "vllm-project/vllm#43559")
class LayersSwapTheirStates(CachedRunner):
    """After a prompt the first two layers with states have each other's."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        if cache is not None and rows.context_lens[0] == len(
            rows.sequences[0].request.prompt_token_ids
        ):
            first, second, *_ = states(cache, RECURRENCE)
            old = first.clone()
            first.copy_(second)
            second.copy_(old)
        return cache
