"""What workloads are drawn for: an engine on a model, as far as they depend on it."""

from typing import Protocol

from batchproof.api import Capability
from batchproof.decoding.grammar import TakenGrammars
from batchproof.decoding.sampling import TakenFields
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle


class Target(Protocol):
    """A `batchproof.run.trial.Trial` is one, and says there what each of these is."""

    oracle: Oracle
    capabilities: frozenset[Capability]

    @property
    def subject(self) -> ModelUnderTest: ...
    @property
    def fields(self) -> TakenFields: ...
    @property
    def grammars(self) -> TakenGrammars: ...
    @property
    def block_sizes(self) -> tuple[int, ...]: ...
    @property
    def has_logits(self) -> bool: ...
