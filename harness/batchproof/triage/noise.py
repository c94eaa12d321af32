"""How large rounding may be: E of the served model, and of every coarser precision an honest engine may
compute in."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle
from batchproof.oracle.precision import AS_SERVED, Precision
from batchproof.run.registry import reference_factory

COARSER = (
    Precision("float16"),
    Precision(None, is_cache_int8=True),
    Precision("bfloat16"),
    Precision("bfloat16", is_cache_int8=True),
)


@dataclass(frozen=True)
class Noise:
    """Bounds of regret, 2 kappa E. `tight` is that of the model as it is served, `coarse` that of the
    coarsest precision; both are 0 for a constructed model, whose margins no rounding bridges."""

    unit: float | None = None  # E as served; None for a constructed model
    tight: float = 0.0
    named: tuple[tuple[str, float], ...] = ()  # precisions, each with its bound, the finest first

    @property
    def coarse(self) -> float:
        """The bound of what rounding explains at all."""
        return max((bound for _, bound in self.named), default=self.tight)

    def precision_of(self, regret: float) -> str:
        """Returns the finest precision whose bound covers the regret."""
        covering = [(bound, name) for name, bound in self.named if regret <= bound]
        return min(covering)[1] if covering else "no precision"


def measured_noise(subject: ModelUnderTest) -> Noise:
    """Measures the reference at each precision against float64. Raises `OracleError`."""
    if subject.oracle is not None:
        return Noise()
    bounds = []
    units = []
    for precision in (AS_SERVED, *COARSER):
        if precision.compute == subject.dtype_name:
            continue
        oracle = Oracle(subject, reference_factory(), precision)
        units.append(oracle.error.max_abs)
        name = str(precision) or f"{subject.dtype_name}, as served"
        bounds.append((name, 2 * oracle.kappa * units[-1]))
    return Noise(units[0], bounds[0][1], tuple(sorted(bounds, key=lambda each: each[1])))
