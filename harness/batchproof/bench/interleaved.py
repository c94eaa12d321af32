"""Engines timed on one workload, interleaved: A B C, C B A, A B C, ...

A slow minute of the machine slows all engines alike, and ratios are taken within a lap. Each lap has
its own prompts. All answers of all laps are checked after the last lap, outside the timed sections.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from batchproof.bench import schedule
from batchproof.bench.interference import InterferenceMonitor, stopped_for
from batchproof.bench.laps import Laps
from batchproof.bench.ratios import paired_ratio
from batchproof.bench.reading import VALID, exceeds_slots
from batchproof.bench.result_rows import Terms, row_of, times_s
from batchproof.bench.spec import BenchWorkload
from batchproof.bench.timed_engine import TimedEngine
from batchproof.bench.verification import Verifier, default_sample_size
from batchproof.run.trial import Trial

LEAST_SHARE = 0.5  # of wall time spent computing, relative to the engine with the largest share


def compare_engines(
    trials: Sequence[Trial], workload: BenchWorkload, terms: Terms, on_round: Callable[[str], None]
) -> dict[str, Any]:
    """Times all trials' engines on one workload and returns one entry of a result file's `comparisons`,
    without its model. All trials share one model.

    `on_round` is called with a label before each of the `2 * len(trials) * (num_laps + 1)` pieces of
    work.
    """
    came = workload.arrivals
    laps = Laps(workload.requests, trials[0].subject.vocab_size, (came,), first=came)
    engines = timed_engines(trials, workload, laps, terms, on_round)
    terms = replace(terms, clock=clock_for(engines, terms.clock))
    rows = [row_of(each, workload, terms) for each in engines]
    return {
        "workload": workload_facts(workload),
        "clock": terms.clock,
        "lap_seeds": laps.seeds,
        "rows": rows,
        "ratios": _ratios(engines, rows, terms.clock, workload.config.max_num_seqs),
    }


def timed_engines(
    trials: Sequence[Trial],
    workload: BenchWorkload,
    laps: Laps,
    terms: Terms,
    on_round: Callable[[str], None],
) -> list[TimedEngine]:
    """Runs all laps of all engines, checks every answer, and returns the engines, which are closed.

    `on_round` is called before each of the `2 * len(trials) * (laps.num_rounds * num_laps + 1)` pieces
    of work.
    """
    size = terms.sample_size
    if size is None:
        size = default_sample_size(sum(r.max_new_tokens for r in workload.requests))
    engines = [
        TimedEngine(trial, workload.config, laps, Verifier(trial.oracle, size), terms.time_limit_s)
        for trial in trials
    ]
    monitor = InterferenceMonitor(trials[0].lab, trials[0].subject, listens=terms.clock == "process")
    try:
        _run(engines, laps, terms.num_laps, monitor, on_round)
    finally:
        for each in engines:
            each.close()
    stopped_for(monitor.harm(), None, engines)
    for each in engines:
        each.learn()
    for each in engines:
        each.judge_rounds(partial(on_round, f"checking {each.name}"))
    return engines


def _run(
    engines: Sequence[TimedEngine],
    laps: Laps,
    num_laps: int,
    monitor: InterferenceMonitor,
    on_round: Callable[[str], None],
) -> None:
    if stopped_for(monitor.harm(), None, engines):  # built before, to learn their capabilities
        return
    for each in engines:
        on_round(f"{each.name}: first round")
        each.start()
        on_round(f"{each.name}: first round checked")
        if stopped_for(monitor.harm(), each, engines):
            return
    num_rounds = num_laps * laps.num_rounds
    for number in range(1, num_rounds + 1):
        for each in engines if laps.is_forward(number) else reversed(engines):
            on_round(f"{each.name}: round {number} of {num_rounds}")
            if not each.is_running:
                continue
            gc.collect()  # no engine is charged for the garbage of another
            each.time_round(number)
            if stopped_for(monitor.noise(), each, engines):
                return


def clock_for(engines: Sequence[TimedEngine], asked: str) -> str:
    """Returns the clock for ratios: `asked`, or "wall" if an engine computes mostly outside this
    process, or waits, so that process time does not measure it. A busy machine lowers the share of CPU
    time of some rounds, or of all engines: the rule takes the best round of each, and looks for one
    engine that stands out."""
    shares = [
        max(each.process_s / each.wall_s for each in timed.rounds)
        for timed in engines
        if timed.rounds and timed.problem is None
    ]
    return "wall" if shares and min(shares) < LEAST_SHARE * max(*shares, 0.2) else asked


def workload_facts(workload: BenchWorkload) -> dict[str, Any]:
    """Returns the workload as a result file keeps it."""
    requests = workload.requests
    return {
        "name": workload.spec.name,
        "hash": workload.hash,
        "spec": workload.spec.as_dict(),
        "totals": workload.totals(),
        "max_speedup_over_static": schedule.max_speedup_over_static(
            [len(r.prompt_token_ids) for r in requests],
            [r.max_new_tokens for r in requests],  # no request has an EOS
            workload.config.max_num_seqs,
        ),
    }


def _ratios(
    engines: Sequence[TimedEngine], rows: Sequence[Mapping[str, Any]], clock: str, slots: int
) -> list[dict[str, Any]]:
    """Returns the ratio of each engine over each one named before it, where both are VALID and neither
    was seen to use more slots than it was given."""
    valid = [
        each
        for each, row in zip(engines, rows, strict=True)
        if row["verdict"] == VALID and not exceeds_slots(row, slots)
    ]
    return [
        {"engine": later.name, "over": earlier.name, "clock": clock}
        | paired_ratio(times_s(later.rounds, clock), times_s(earlier.rounds, clock)).as_dict()
        for earlier, later in combinations(valid, 2)
    ]
