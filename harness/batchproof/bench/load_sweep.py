"""Throughput against latency: engines at rising load, interleaved, every answer checked.

A lap visits all loads; at each the engines take turns, as in a comparison. One wrong answer at any load
leaves an engine without figures at all of them. A load at which the client is saturated has no figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from batchproof.bench.client import client_figures
from batchproof.bench.drive import Round
from batchproof.bench.interleaved import timed_engines
from batchproof.bench.knee import in_words, judge_points, knee_of, rates
from batchproof.bench.laps import Laps
from batchproof.bench.load import Load
from batchproof.bench.metrics import latencies, measure
from batchproof.bench.result_rows import Terms, verdict_of
from batchproof.bench.spec import BenchWorkload
from batchproof.bench.timed_engine import TimedEngine
from batchproof.run.trial import Trial

Figures = dict[str, Any]


def sweep_load(
    trials: Sequence[Trial],
    load: Load,
    workloads: Sequence[BenchWorkload],
    terms: Terms,
    on_round: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Returns an entry of a result file's `load` for each engine, without its workload and model.

    `workloads` are those of `load`, in its order: they differ in arrivals only. The first round, which
    warms up, has all requests at once; `on_round` is called as `timed_engines` says.
    """
    laps = Laps(
        workloads[0].requests, trials[0].subject.vocab_size, [each.arrivals for each in workloads]
    )
    engines = timed_engines(trials, workloads[0], laps, terms, on_round)
    return [_entry(each, load, workloads, terms) for each in engines]


def _entry(
    timed: TimedEngine, load: Load, workloads: Sequence[BenchWorkload], terms: Terms
) -> dict[str, Any]:
    verdict, reason = verdict_of(timed)
    points = []
    for index, (value, workload) in enumerate(zip(load.values, workloads, strict=True)):
        if timed.problem is None:
            rounds = timed.rounds[index :: len(workloads)]
            points.append({"load": value} | point_of(rounds, workload, terms))
    judge_points(points)
    knee = knee_of(points)
    return empty_entry(timed.name, verdict, reason, load) | {
        "num_laps": terms.num_laps,
        "verification": timed.verifier.as_dict(),
        "points": points,
        "knee": knee,
        "words": in_words(load.kind, points, knee) if points else f"{verdict}: {reason}",
    }


def empty_entry(engine: str, verdict: str, reason: str | None, load: Load) -> dict[str, Any]:
    """Returns the entry of an engine that has no figures."""
    return {
        "engine": engine,
        "verdict": verdict,
        "reason": reason,
        "kind": load.kind,
        "burstiness": load.burstiness,
        "num_laps": 0,
        "points": [],
        "knee": None,
        "words": f"{verdict}: {reason}",
    }


def point_of(rounds: Sequence[Round], workload: BenchWorkload, terms: Terms) -> Figures:
    """Returns what a result file keeps of an engine's rounds at one load, without the load."""
    logs = [each.client for each in rounds if each.client is not None]
    walls_s = [each.wall_s for each in rounds]
    client = client_figures(logs, walls_s, latencies(rounds)["ttft"] or [])
    saturation = client.saturation
    each_lap = [_figures([each], workload, terms) for each in rounds]
    return {
        "workload_hash": workload.hash,
        "saturation": saturation,
        "client": asdict(client),
        "metrics": None if saturation else _figures(rounds, workload, terms),
        "spread": None if saturation else _spread(each_lap),
        "wall_s": walls_s,
    }


def _figures(rounds: Sequence[Round], workload: BenchWorkload, terms: Terms) -> Figures:
    figures = measure(rounds, workload.requests, terms.slo_ms) | rates(rounds, workload.arrivals)
    if figures["goodput_share"] is not None and figures["achieved_rate"] is not None:
        figures["request_goodput"] = figures["goodput_share"] * figures["achieved_rate"]
    return figures


def _spread(laps: Sequence[Figures]) -> dict[str, tuple[float, float]]:
    """Returns the smallest and largest value of each figure over the laps."""
    known = [name for name, value in laps[0].items() if value is not None]
    return {
        name: (min(each[name] for each in laps), max(each[name] for each in laps)) for name in known
    }
