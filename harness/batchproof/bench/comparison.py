"""Engines compared on one workload, interleaved: A B C, C B A, A B C, ...

A machine that slows down for a minute slows all of them, and a ratio is made within a lap. Each lap
has prompts of its own. Every answer of every lap is judged after the last, with the clocks stopped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

from batchproof.bench import schedule
from batchproof.bench.contender import Contender
from batchproof.bench.laps import Laps
from batchproof.bench.ratios import paired_ratio
from batchproof.bench.reading import VALID
from batchproof.bench.rows import Terms, row_of, times_s
from batchproof.bench.spec import BenchWorkload
from batchproof.bench.verification import Verifier, default_sample_size
from batchproof.bench.watch import Watch, stop_for
from batchproof.run.trial import Trial

LEAST_SHARE = 0.5  # of the wall time, beside the engine that computes for the largest share of it


def compare_engines(
    trials: Sequence[Trial], workload: BenchWorkload, terms: Terms, on_round: Callable[[str], None]
) -> dict[str, Any]:
    """One entry of a result file's `comparisons` (without its model). All trials share one model.

    `on_round` is told at each of the `2 * len(trials) * (num_laps + 1)` pieces of work.
    """
    size = terms.sample_size
    if size is None:
        size = default_sample_size(sum(r.max_new_tokens for r in workload.requests))
    laps = Laps(workload.requests, trials[0].subject.vocab_size)
    contenders = [
        Contender(trial, workload, laps, Verifier(trial.oracle, size), terms.time_limit_s)
        for trial in trials
    ]
    watch = Watch(trials[0].lab, trials[0].subject, listens=terms.clock == "process")
    try:
        _run(contenders, terms.num_laps, watch, on_round)
    finally:
        for each in contenders:
            each.close()
    harm = watch.harm()
    if harm is not None:
        stop_for(harm, None, contenders)
    for each in contenders:
        each.learn()
    for each in contenders:
        each.judge_laps(lambda name=each.name: on_round(f"checking {name}"))  # type: ignore[misc]
    terms = replace(terms, clock=clock_for(contenders, terms.clock))
    rows = [row_of(each, workload, terms) for each in contenders]
    return {
        "workload": _workload(workload),
        "clock": terms.clock,
        "lap_seeds": laps.seeds,
        "rows": rows,
        "ratios": _ratios(contenders, rows, terms.clock),
    }


def _run(
    contenders: Sequence[Contender], num_laps: int, watch: Watch, on_round: Callable[[str], None]
) -> None:
    harm = watch.harm()  # engines have been built before, to learn what they can do
    if harm is not None:
        stop_for(harm, None, contenders)
        return
    for each in contenders:
        on_round(f"{each.name}: first round")
        each.start()
        on_round(f"{each.name}: first round checked")
        harm = watch.harm()
        if harm is not None:
            stop_for(harm, each, contenders)
            return
    for lap in range(1, num_laps + 1):
        for each in contenders if lap % 2 else reversed(contenders):
            on_round(f"{each.name}: lap {lap} of {num_laps}")
            if not each.is_running:
                continue
            gc.collect()  # nobody pays for the garbage of the one before
            each.time_lap(lap)
            harm = watch.noise()
            if harm is not None:
                stop_for(harm, each, contenders)
                return


def clock_for(contenders: Sequence[Contender], asked: str) -> str:
    """This process's own time tells nothing of an engine that works in another process, or waits. On a
    busy machine all engines get less of the wall clock; such an engine stands out."""
    shares = [
        median(each.process_s / each.wall_s for each in contender.rounds)
        for contender in contenders
        if contender.rounds and contender.problem is None
    ]
    return "wall" if shares and min(shares) < LEAST_SHARE * max(*shares, 0.2) else asked


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


def _ratios(
    contenders: Sequence[Contender], rows: Sequence[Mapping[str, Any]], clock: str
) -> list[dict[str, Any]]:
    """Each engine over each one named before it, where both are VALID."""
    valid = [c for c, row in zip(contenders, rows, strict=True) if row["verdict"] == VALID]
    return [
        {"engine": later.name, "over": earlier.name, "clock": clock}
        | paired_ratio(times_s(later.rounds, clock), times_s(earlier.rounds, clock)).as_dict()
        for earlier, later in combinations(valid, 2)
    ]
