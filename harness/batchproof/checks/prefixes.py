"""What a prefix cache may hold: the tokens that an engine has really computed (promise P7).

An engine with the capability may let a request begin behind the keys of an equal beginning, its own
before a preemption included. Which keys it keeps is its own choice; that they were computed is
checked.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from batchproof.api import Capability, Completion, EngineConfig, FinishReason, RowRecord, StepRecord
from batchproof.workload.workloads import Workload


def may_share(config: EngineConfig, capabilities: AbstractSet[Capability]) -> bool:
    """Returns whether a request may begin behind keys that another one has computed."""
    return config.prefix_caching and Capability.PREFIX_CACHING in capabilities


@dataclass(frozen=True, slots=True)
class Computed:
    """The first `num_computed` tokens of one request.

    After an abort or a hang the last of them may be unknown; an unknown token counts as equal to any
    other.
    """

    token_ids: tuple[int, ...]  # prompt and answer, as far as they are known
    num_computed: int
    variant: int = 0  # of the model: the number of the adapter

    def begins_with(self, token_ids: tuple[int, ...], length: int, variant: int) -> bool:
        """Returns whether this begins with `length` tokens that equal `token_ids`, as far as both
        are known, computed by the same variant."""
        known = zip(self.token_ids, token_ids, strict=False)
        is_long_enough = variant == self.variant and length <= self.num_computed
        return is_long_enough and all(mine == theirs for mine, theirs in known)


class ComputedPrefixes:
    """Follows the trace of one workload row by row; `earlier` is what workloads before it have
    computed."""

    def __init__(
        self,
        workload: Workload,
        completions: Sequence[Completion] = (),
        earlier: Sequence[Computed] = (),
    ) -> None:
        self._earlier = earlier
        self._variants = {each.request_id: workload.variant_of(each) for each in workload.requests}
        self._token_ids = {each.request_id: each.prompt_token_ids for each in workload.requests}
        for request, completion in zip(workload.requests, completions, strict=False):
            if completion.finish_reason is not FinishReason.ERROR:
                tokens = (*request.prompt_token_ids, *completion.token_ids)
                self._token_ids[request.request_id] = tokens
        self._num_computed: dict[str, int] = {}

    def note(self, row: RowRecord) -> None:
        """Notes the tokens of a row as computed. An unknown id is ignored: another rule judges it."""
        if row.request_id in self._token_ids:
            end = max(row.cached_len, self._num_computed.get(row.request_id, 0))
            self._num_computed[row.request_id] = end

    def note_all(self, records: Iterable[StepRecord]) -> Self:
        for record in records:
            for row in record.rows:
                self.note(row)
        return self

    def hold(self, request_id: str, length: int) -> bool:
        """Returns whether the first `length` tokens of this request have been computed by any
        request."""
        prefix, variant = self._token_ids[request_id][:length], self._variants[request_id]
        known = (*self._earlier, *self.computed)
        return any(each.begins_with(prefix, length, variant) for each in known)

    @property
    def computed(self) -> tuple[Computed, ...]:
        return tuple(
            Computed(self._token_ids[name], num, self._variants[name])
            for name, num in self._num_computed.items()
        )
