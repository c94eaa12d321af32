"""Where a curve of throughput and latency bends: rates of a round, and the knee over rising loads.

    offered_rate    requests per second between the first and the last arrival
    achieved_rate   the same between the first and the last end of a request; of a batch that ends at
                    once as the first, none counts
    keeps up        achieved_rate >= 0.95 * offered_rate; else the queue grows as long as requests come
    power           achieved_rate / mean end-to-end latency
    knee            the load of largest power among those that the engine keeps up with

Power and knee are Kleinrock's (L. Kleinrock, "Power and deterministic rules of thumb for probabilistic
problems in computer communications", ICC 1979): beyond the knee latency grows by a larger factor than
throughput. For M/D/1 it lies at a utilisation of 2 - sqrt(2) = 0.586. Both rates leave out the time in
which the first request is served and the last one drains, so they agree for an engine that keeps up,
however short the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a report needs no torch
    from batchproof.bench.arrivals import Arrivals
    from batchproof.bench.drive import Round

LEAST_KEPT_UP = 0.95
LEAST_POINTS = 3  # with fewer there is no bend
Point = Mapping[str, Any]  # of a result file: `load`, `metrics` and more


def rates(rounds: Sequence[Round], arrivals: Arrivals) -> dict[str, float | None]:
    """Returns offered and achieved requests per second, the latter of the median round; None for fewer
    than two requests. In closed loop nothing is offered: requests come as fast as they are served."""
    achieved = []
    for each in rounds:
        assert each.client is not None, "under load requests come one by one"
        assert each.token_times_s is not None, "a client and times come together"
        times = zip(each.client.due_s, each.token_times_s, strict=True)
        achieved.append(_rate([due + own[-1] for due, own in times]))
    return {"offered_rate": _rate(arrivals.due_s or ()), "achieved_rate": _median(achieved)}


def _rate(times_s: Sequence[float]) -> float | None:
    first = min(times_s, default=0.0)
    span = max(times_s, default=0.0) - first
    return sum(each > first for each in times_s) / span if span > 0 else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def keeps_up(metrics: Mapping[str, Any]) -> bool:
    """Returns whether requests end as fast as they come."""
    offered, achieved = metrics["offered_rate"], metrics["achieved_rate"]
    return offered is None or (achieved is not None and achieved >= LEAST_KEPT_UP * offered)


def knee_of(points: Sequence[Point]) -> float | None:
    """Returns the load at the knee; None if too few points have figures, or the engine keeps up with
    none. Points rise."""
    shown = [each for each in points if each["metrics"] and each["metrics"]["achieved_rate"]]
    able = [each for each in shown if keeps_up(each["metrics"])]
    if len(shown) < LEAST_POINTS or not able:
        return None
    best = max(able, key=lambda each: _power(each["metrics"]))
    return float(best["load"])


def _power(metrics: Mapping[str, Any]) -> float:
    return float(metrics["achieved_rate"] / metrics["mean_e2el_ms"])


def in_words(kind: str, points: Sequence[Point], knee: float | None) -> str:
    """Returns knee and limit of one engine as a sentence without its name."""
    shown = [each for each in points if each["metrics"]]
    found = [_limit(kind, shown)] if kind == "rate" and shown else []
    if knee is not None:
        metrics = next(each["metrics"] for each in shown if each["load"] == knee)
        found.append(
            f"knee at {kind} {knee:g}: {metrics['achieved_rate']:.3g} requests/s, "
            f"ttft p99 {metrics['p99_ttft_ms']:,.4g} ms, e2el p99 {metrics['p99_e2el_ms']:,.4g} ms"
        )
        if knee == shown[-1]["load"]:
            found[-1] += " (the highest load with figures: it may lie beyond)"
    gaps = {f"{each['load']:g}": each["saturation"] for each in points if each["saturation"]}
    for load, reason in [*gaps.items()][:1]:
        at = f"at {load} " if len(gaps) > 1 else ""
        found.append(f"no figures at {kind} {', '.join(gaps)}: {at}{reason}")
    return "; ".join(found) or "no point has figures"


def _limit(kind: str, shown: Sequence[Point]) -> str:
    """Returns the highest load up to which the engine keeps up with every one."""
    able = [*takewhile(lambda each: keeps_up(each["metrics"]), shown)]
    if not able:
        return f"falls behind at {kind} {shown[0]['load']:g}"
    behind = f", not with {shown[len(able)]['load']:g}" if len(able) < len(shown) else ""
    return f"keeps up with {kind} {able[-1]['load']:g}{behind}"
