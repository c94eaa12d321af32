"""What a prefix cache may hold: the tokens that an engine has really computed (promise P7).

An engine with the capability may let a request begin behind the keys of an equal beginning, its own
before a preemption included. Which keys it keeps is its own choice; that they were computed is
checked.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from batchproof.api import Capability, Completion, EngineConfig, FinishReason, RowRecord, StepRecord
from batchproof.checks.lifecycle import Cuts
from batchproof.workload.workloads import Workload


def may_share(config: EngineConfig, capabilities: AbstractSet[Capability]) -> bool:
    """Returns whether a request may begin behind keys that another one has computed."""
    return config.prefix_caching and Capability.PREFIX_CACHING in capabilities


@dataclass(frozen=True, slots=True)
class Computed:
    """The first `num_computed` tokens of one request, but for `start` of them, which were to be
    forgotten.

    After an abort or a hang the last of them may be unknown; an unknown token counts as equal to any
    other.
    """

    token_ids: tuple[int, ...]  # prompt and answer, as far as they are known
    num_computed: int
    variant: int = 0  # of the model: the number of the adapter
    start: int = 0

    def end_in(self, token_ids: tuple[int, ...], length: int, variant: int) -> int:
        """Returns how many of `length` tokens this begins with that equal `token_ids`, as far as both
        are known, computed by the same variant."""
        if variant != self.variant:
            return 0
        pairs = enumerate(zip(self.token_ids, token_ids, strict=False))
        num_equal = next((place for place, (mine, theirs) in pairs if mine != theirs), length)
        return min(num_equal, length, self.num_computed)


class ComputedPrefixes:
    """Follows the trace of a workload row by row; `earlier` is what workloads before have computed."""

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
        self._starts: dict[str, int] = {}  # of what was to be forgotten, its end

    def forget(self) -> None:
        """Notes that all is to be forgotten: what a request in flight has, no other may find."""
        self._starts |= self._num_computed
        self._earlier, self._num_computed = (), {}

    def note(self, row: RowRecord) -> None:
        """Notes the tokens of a row as computed. An unknown id is ignored: another rule judges it."""
        if row.request_id in self._token_ids:
            end = max(row.cached_len, self._num_computed.get(row.request_id, 0))
            self._num_computed[row.request_id] = end
            if row.request_id in self._starts:
                start = min(row.context_len, self._starts[row.request_id])
                self._starts[row.request_id] = start

    def note_all(self, records: Sequence[StepRecord], cuts: Cuts) -> Self:
        for place in range(len(records) + 1):
            if place in cuts.clearings:
                self.forget()
            for row in records[place].rows if place < len(records) else ():
                self.note(row)
        return self

    def hold(self, request_id: str, length: int) -> bool:
        """Returns whether any request has computed the first `length` tokens of this one."""
        prefix, variant = self._token_ids[request_id][:length], self._variants[request_id]
        covered = 0
        for each in sorted(self.computed, key=lambda known: known.start):
            if each.start <= covered:
                covered = max(covered, each.end_in(prefix, length, variant))
        return covered >= length

    @property
    def computed(self) -> tuple[Computed, ...]:
        """Everything that is known to be computed, by earlier workloads too."""
        own = tuple(
            Computed(self._token_ids[name], num, self._variants[name], self._starts.get(name, 0))
            for name, num in self._num_computed.items()
        )
        return (*self._earlier, *own)
