"""One engine's row in a comparison: its verdict, and the figures of a correct engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from batchproof.api import Capability
from batchproof.bench.drive import Round
from batchproof.bench.hardware import Ceilings
from batchproof.bench.metrics import measure, schedule_figures
from batchproof.bench.roofline import ModelCosts, least_time
from batchproof.bench.spec import BenchWorkload
from batchproof.bench.timed_engine import TimedEngine

VALID, INVALID, UNVERIFIED = "VALID", "INVALID", "UNVERIFIED"


@dataclass(frozen=True, slots=True)
class Terms:
    """How a comparison is measured. `clock`: what ratios are made of, "process" or "wall"."""

    num_laps: int
    clock: str
    ceilings: Ceilings | None = None
    sample_size: int | None = None  # requests checked in each round; None: as many as is cheap
    time_limit_s: float = 600.0
    measures_memory: bool = False


def row_of(timed: TimedEngine, workload: BenchWorkload, terms: Terms) -> dict[str, Any]:
    """Returns the row of a result file. Figures are None unless the engine kept its promises."""
    verdict, reason = _verdict(timed)
    has_figures = timed.problem is None
    rounds, peak = timed.rounds, timed.peak_memory
    return {
        "engine": timed.name,
        "verdict": verdict,
        "reason": reason,
        "verification": timed.verifier.as_dict(),
        "interface": "stepping" if Capability.STEPPING in timed.trial.capabilities else "generate",
        "build_s": timed.build_s,
        "first_round_s": timed.first_round_s if has_figures else None,
        "num_at_once": max((r.num_at_once or 0 for r in rounds), default=0) or None,
        "cores": median(r.process_s / r.wall_s for r in rounds) if rounds and has_figures else None,
        "peak_memory_bytes": peak if has_figures and isinstance(peak, int) else None,
        "memory_lack": peak if isinstance(peak, str) else None,
        "rounds": [{"wall_s": r.wall_s, "process_s": r.process_s} for r in rounds if has_figures],
        "metrics": measure(rounds, workload.requests) if has_figures else None,
        "schedule": _schedule(timed, workload, terms) if has_figures else None,
    }


def _verdict(timed: TimedEngine) -> tuple[str, str | None]:
    if timed.problem is not None:
        return UNVERIFIED if timed.is_blameless else INVALID, timed.problem
    adequacy = timed.trial.lab.adequacy(timed.trial.subject)
    if not timed.verifier.has_checked:
        return UNVERIFIED, "no token was checked (--verify 0)"
    if adequacy is not None and not adequacy.is_adequate:
        return UNVERIFIED, f"equal tokens prove little on this model: {adequacy}"
    return VALID, None


def _schedule(timed: TimedEngine, workload: BenchWorkload, terms: Terms) -> dict[str, Any]:
    """Returns what the trace shows. The roofline is None without a trace or ceilings, and for a model
    whose work is not counted."""
    found = schedule_figures(timed.trace, workload.config.max_num_seqs)
    costs = ModelCosts.of(timed.trial.subject.model) if timed.trace else None
    if costs is None or terms.ceilings is None:
        return {**found, "roofline": None}
    least = least_time(timed.trace, costs, terms.ceilings)
    took_s = median(times_s(timed.rounds, terms.clock))
    return {**found, "roofline": {"share": least.least_s / took_s, **asdict(least)}}


def times_s(rounds: Sequence[Round], clock: str) -> list[float]:
    """Returns the seconds of each round by the clock "process" or "wall"."""
    return [each.process_s if clock == "process" else each.wall_s for each in rounds]


def is_compared(row: Mapping[str, Any], slots: int) -> bool:
    """Whether ratios are made of the row: it is VALID, and ran the workload in the slots it has."""
    return row["verdict"] == VALID and not exceeds_slots(row, slots)


def exceeds_slots(row: Mapping[str, Any], slots: int) -> bool:
    """Whether more requests were served at once than the workload has slots. False for a row of an
    engine that was not stepped, which does not show it."""
    return (row.get("num_at_once") or 0) > slots
