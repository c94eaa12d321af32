"""Unusual ways to sleep and to take over weights."""

from torch import Tensor

from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.weights import Weights


@odd
class SleepsWithItsCaches(RaggedPagedEngine):
    """A sleep gives nothing back: requests go on where they were, and all prefixes are still known."""

    def sleep(self) -> None:
        self._is_asleep = True


@odd
class RestartsInTheirSlots(RaggedEngine):
    """When it sleeps or gets new weights, requests keep their slots and are fed from the start again,
    so that none counts as preempted."""

    def restart(self) -> None:
        for sequence in self._scheduler.running:
            sequence.num_computed_tokens = 0
        self._caches.clear()


@odd
class WeightsMove(Weights):
    """Each update gives the parameters a storage of their own."""

    def take_over(self, name: str, mine: Tensor, theirs: Tensor) -> None:  # noqa: ARG002
        mine.data = theirs.detach().clone()
