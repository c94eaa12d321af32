"""The precision an engine computes in, where that is not the dtype of the model it serves.

That is a choice, not a fault. How far rounding carries such an engine is measured (docs/near_ties.md).
A constructed model needs no bound: its margins exceed this rounding, so every token must match exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchproof.models.embedded import DTYPES
from batchproof.validation.values import one_of

if TYPE_CHECKING:
    from batchproof.models.catalogue import ModelUnderTest

KV_CACHES = ("auto", "int8")


@dataclass(frozen=True, slots=True)
class Precision:
    """`compute` is the name of a dtype; None: that of the model under test. `kv_cache` and `weights`
    are names of formats (`rounding.py`); None: what is computed in. `has_rounded_ends`: the embedding
    and the head are in the format of the weights too."""

    compute: str | None = None
    kv_cache: str | None = None
    weights: str | None = None
    has_rounded_ends: bool = False

    @property
    def is_quantized(self) -> bool:
        return self.kv_cache is not None or self.weights is not None

    def of(self, subject: ModelUnderTest) -> str:
        """Returns the name of the dtype whose rounding counts."""
        return self.compute or subject.dtype_name

    def __str__(self) -> str:
        """Empty for the model's own precision."""
        cache = self.kv_cache and f"{self.kv_cache} keys and values"
        ends = " and embeddings" if self.has_rounded_ends else ""
        weights = self.weights and f"{self.weights} weights{ends}"
        return ", ".join(filter(None, (self.compute, weights, cache)))


AS_SERVED = Precision()


def resolve_precision(compute: str | None, kv_cache: str) -> Precision:
    """Returns the precision for `--compute-dtype` and `--kv-cache-dtype`. Raises `UsageError`."""
    one_of("--kv-cache-dtype", kv_cache, KV_CACHES)
    if compute is not None:
        one_of("--compute-dtype", compute, DTYPES)
    return Precision(compute, None if kv_cache == "auto" else kv_cache)
