"""One engine's row in a comparison: its verdict, and the figures that a right engine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from batchproof.bench import schedule
from batchproof.bench.contender import Contender
from batchproof.bench.drive import Round
from batchproof.bench.metrics import distributions, measure
from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.bench.roofline import Ceilings, ModelCosts, least_time
from batchproof.bench.spec import BenchWorkload


@dataclass(frozen=True, slots=True)
class Terms:
    """How it is measured. `clock`: what ratios shall be made of, "process" or "wall"."""

    num_laps: int
    clock: str
    ceilings: Ceilings | None = None
    sample_size: int | None = None  # requests checked in each round; None: as many as is cheap
    slo_ms: Mapping[str, float] | None = None
    time_limit_s: float = 600.0


def row_of(contender: Contender, workload: BenchWorkload, terms: Terms) -> dict[str, Any]:
    verdict, reason = _verdict(contender)
    has_figures = contender.problem is None
    watched, rounds = contender.watched, contender.rounds
    requests = workload.requests
    return {
        "engine": contender.name,
        "verdict": verdict,
        "reason": reason,
        "verification": contender.verifier.as_dict(),
        "interface": "stepping" if contender.is_stepping else "generate",
        "build_s": contender.build_s,
        "first_round_s": watched.seconds if watched and has_figures else None,
        "rounds": [{"wall_s": r.wall_s, "process_s": r.process_s} for r in rounds if has_figures],
        "metrics": measure(rounds, requests, terms.slo_ms) if has_figures else None,
        "distributions": distributions(rounds) if has_figures else None,
        "schedule": _schedule(contender, workload, terms) if has_figures else None,
    }


def _verdict(contender: Contender) -> tuple[str, str | None]:
    if contender.problem is not None:
        return UNVERIFIED if contender.is_blameless else INVALID, contender.problem
    adequacy = contender.trial.lab.adequacy(contender.trial.subject)
    if not contender.verifier.has_checked:
        return UNVERIFIED, "no token was checked (--verify 0)"
    if adequacy is not None and not adequacy.is_adequate:
        return UNVERIFIED, f"equal tokens prove little on this model: {adequacy}"
    return VALID, None


def _schedule(contender: Contender, workload: BenchWorkload, terms: Terms) -> dict[str, Any] | None:
    watched = contender.watched
    assert watched is not None, "a row with figures has had its first round"
    requests, num_slots = workload.requests, workload.config.max_num_seqs
    output_lens = [len(completion.token_ids) for completion in contender.rounds[0].completions]
    trace, seen = watched.trace, watched.seen
    forwards = () if seen.unseen else seen.forwards
    prompt_lens = {r.request_id: len(r.prompt_token_ids) for r in requests}
    found = schedule.figures(trace, forwards, num_slots, requests, output_lens, seen.unseen)
    found["peak_memory_bytes"] = watched.peak_memory_bytes
    found["roofline"] = _roofline(contender, workload, terms)
    try:
        found["timeline"] = schedule.timeline(trace, forwards, num_slots, requests)
        found["composition"] = schedule.composition(trace, num_slots, prompt_lens)
    except (KeyError, ValueError):  # a trace that contradicts itself is for the conformance tests
        found |= {"timeline": None, "composition": None}
    return found


def _roofline(contender: Contender, workload: BenchWorkload, terms: Terms) -> dict[str, Any] | None:
    """None without a trace, without ceilings, and where the engine had to wait for arrivals."""
    watched = contender.watched
    if not (watched and watched.trace and terms.ceilings) or workload.arrivals_s is not None:
        return None
    costs = ModelCosts.of(contender.trial.subject.model)
    if isinstance(costs, str):
        return None
    least = least_time(watched.trace, costs, terms.ceilings)
    took_s = median(times_s(contender.rounds, terms.clock))
    return {
        "share": least.least_s / took_s,
        "least_s": least.least_s,
        "bytes": least.bytes,
        "flop": least.flop,
        "bound": least.bound,
    }


def times_s(rounds: Sequence[Round], clock: str) -> list[float]:
    return [each.process_s if clock == "process" else each.wall_s for each in rounds]
