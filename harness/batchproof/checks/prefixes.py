"""What a prefix cache may hold: the tokens that an engine has really computed (promise P7).

An engine with the capability may let a request begin behind the keys of an equal beginning, its own
before a preemption included. Which of them it still has is its own affair; that somebody has computed
them is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    RowRecord,
    StepRecord,
)
from batchproof.workload.workloads import Workload


def may_share(config: EngineConfig, capabilities: AbstractSet[Capability]) -> bool:
    """May a request begin behind keys that another one has computed?"""
    return config.prefix_caching and Capability.PREFIX_CACHING in capabilities


@dataclass(frozen=True, slots=True)
class Computed:
    """The first `num_computed` tokens of one request. An abort, or a hang, may hide the last of them:
    what is not known is taken to be whatever the engine says."""

    token_ids: tuple[int, ...]  # prompt and answer, as far as they are known
    num_computed: int

    def begins_with(self, token_ids: tuple[int, ...], length: int) -> bool:
        """Do `length` tokens, of which those given are known, stand at its beginning?"""
        known = zip(self.token_ids, token_ids, strict=False)
        return length <= self.num_computed and all(mine == theirs for mine, theirs in known)


class ComputedPrefixes:
    """Follows one workload's trace row by row; `earlier` is what workloads before it have computed."""

    def __init__(
        self,
        workload: Workload,
        completions: Sequence[Completion] = (),
        earlier: Sequence[Computed] = (),
    ) -> None:
        self._earlier = earlier
        self._token_ids = {each.request_id: each.prompt_token_ids for each in workload.requests}
        for request, completion in zip(workload.requests, completions, strict=False):
            if completion.finish_reason is not FinishReason.ERROR:
                tokens = (*request.prompt_token_ids, *completion.token_ids)
                self._token_ids[request.request_id] = tokens
        self._num_computed: dict[str, int] = {}

    def note(self, row: RowRecord) -> None:
        """Its tokens are computed; names that nobody knows are a finding of others."""
        if row.request_id in self._token_ids:
            end = max(row.context_len + row.query_len, self._num_computed.get(row.request_id, 0))
            self._num_computed[row.request_id] = end

    def note_all(self, records: Iterable[StepRecord]) -> ComputedPrefixes:
        for record in records:
            for row in record.rows:
                self.note(row)
        return self

    def hold(self, request_id: str, length: int) -> bool:
        """Has anybody computed the first `length` tokens of this request?"""
        prefix = self._token_ids[request_id][:length]
        return any(each.begins_with(prefix, length) for each in (*self._earlier, *self.computed))

    @property
    def computed(self) -> tuple[Computed, ...]:
        """By this workload so far."""
        return tuple(Computed(self._token_ids[name], n) for name, n in self._num_computed.items())
