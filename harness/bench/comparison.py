"""Engines compared on one workload, interleaved: A B C, C B A, A B C, ...

A machine that slows down for a minute slows all of them, and a ratio is made within a lap. Each lap
has prompts of its own. Every answer of every lap is judged after the last, with the clocks stopped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from harness.bench import schedule
from harness.bench.contender import Contender
from harness.bench.drive import Round
from harness.bench.metrics import distributions, measure
from harness.bench.ratios import paired_ratio
from harness.bench.roofline import Ceilings, ModelCosts, least_time
from harness.bench.spec import BenchWorkload
from harness.bench.verification import Verifier, default_sample_size
from harness.trial import Trial

VALID, INVALID, UNVERIFIED = "VALID", "INVALID", "UNVERIFIED"


@dataclass(frozen=True, slots=True)
class Terms:
    """How it is measured. `clock`: what ratios are made of, "process" or "wall"."""

    num_laps: int
    clock: str
    ceilings: Ceilings | None = None
    sample_size: int | None = None  # requests checked in each round; None: as many as is cheap
    slo_ms: Mapping[str, float] | None = None
    time_limit_s: float = 600.0


def compare_engines(
    trials: Sequence[Trial], workload: BenchWorkload, terms: Terms, on_round: Callable[[str], None]
) -> dict[str, Any]:
    """One entry of a result file's `comparisons` (without its model). All trials share one model.

    `on_round` is told before each of the `2 * len(trials) * (num_laps + 1)` pieces of work.
    """
    size = terms.sample_size
    if size is None:
        size = default_sample_size(sum(r.max_new_tokens for r in workload.requests))
    contenders = [
        Contender(trial, workload, Verifier(trial.oracle, size), terms.time_limit_s) for trial in trials
    ]
    try:
        _run(contenders, terms.num_laps, on_round)
    finally:
        for each in contenders:
            each.close()
    for each in contenders:
        _learn(each)
    for each in contenders:
        each.judge_laps(lambda name=each.name: on_round(f"checking {name}"))  # type: ignore[misc]
    rows = [_row(each, workload, terms) for each in contenders]
    return {
        "workload": _workload(workload),
        "rows": rows,
        "ratios": _ratios(contenders, rows, terms.clock),
    }


def _run(contenders: Sequence[Contender], num_laps: int, on_round: Callable[[str], None]) -> None:
    for each in contenders:
        on_round(f"{each.name}: first round")
        each.start()
        on_round(f"{each.name}: first round checked")
    for lap in range(1, num_laps + 1):
        for each in contenders if lap % 2 else reversed(contenders):
            on_round(f"{each.name}: lap {lap} of {num_laps}")
            if each.is_running:
                gc.collect()  # nobody pays for the garbage of the one before
                each.time_lap(lap)


def _learn(contender: Contender) -> None:
    """The reference's own laps are the right answers of those laps; its first round was checked."""
    if contender.name != "reference" or contender.problem is not None:
        return
    for lap, each in enumerate(contender.rounds, start=1):
        for request, completion in zip(contender.requests(lap), each.completions, strict=False):
            contender.trial.oracle.learn(request.prompt_token_ids, completion.token_ids)


def _workload(workload: BenchWorkload) -> dict[str, Any]:
    requests = workload.requests
    return {
        "name": workload.spec.name,
        "hash": workload.hash,
        "spec": workload.spec.as_dict(),
        "totals": workload.totals(),
        "max_speedup_over_static": schedule.max_speedup_over_static(
            [len(r.prompt_token_ids) for r in requests],
            [r.max_new_tokens for r in requests],  # none of them has an EOS
            workload.config.max_num_seqs,
        ),
    }


def _row(contender: Contender, workload: BenchWorkload, terms: Terms) -> dict[str, Any]:
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
        return UNVERIFIED if contender.is_late else INVALID, contender.problem
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
    trace, forwards = watched.trace, watched.forwards
    prompt_lens = {r.request_id: len(r.prompt_token_ids) for r in requests}
    found = schedule.figures(trace, forwards, num_slots, requests, output_lens)
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
    took_s = median(_times(contender.rounds, terms.clock))
    return {
        "share": least.least_s / took_s,
        "least_s": least.least_s,
        "bytes": least.bytes,
        "flop": least.flop,
        "bound": least.bound,
    }


def _ratios(
    contenders: Sequence[Contender], rows: Sequence[Mapping[str, Any]], clock: str
) -> list[dict[str, Any]]:
    """Each engine over each one named before it, where both are VALID."""
    valid = [c for c, row in zip(contenders, rows, strict=True) if row["verdict"] == VALID]
    return [
        {"engine": later.name, "over": earlier.name, "clock": clock}
        | paired_ratio(_times(later.rounds, clock), _times(earlier.rounds, clock)).as_dict()
        for earlier, later in combinations(valid, 2)
    ]


def _times(rounds: Sequence[Round], clock: str) -> list[float]:
    return [each.process_s if clock == "process" else each.wall_s for each in rounds]
