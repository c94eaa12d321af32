"""Where a curve of throughput and latency bends: rates of a round, and the knee over rising loads.

    offered_rate    requests per second between the first and the last arrival
    achieved_rate   requests that ended per second, up to the last end; it begins when the first would
                    have ended if it had been the quickest of all, and that one does not count
    lag             how much longer requests took to end than to come, the quickest being free
    keeps up        achieved_rate >= 0.95 * offered_rate. If not, the queue grows as long as requests
                    come; unless the lag is no more than three requests take at the lowest load, which
                    may be chance: then the round is too short to tell
    power           achieved_rate / mean end-to-end latency
    knee            the load of largest power among those that the engine keeps up with

Power and knee are Kleinrock's (L. Kleinrock, "Power and deterministic rules of thumb for probabilistic
problems in computer communications", ICC 1979): beyond the knee latency grows by a larger factor than
throughput. For M/D/1 it lies at a utilisation of 2 - sqrt(2) = 0.586. The achieved rate leaves out the
time that one request takes, so it is that offered for an engine that keeps up, however short the round;
and it is never more, whatever the engine delays.
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
MOST_BY_CHANCE = 3  # times the median latency at the lowest load
LEAST_POINTS = 3  # with fewer there is no bend
Point = Mapping[str, Any]  # of a result file: `load`, `metrics` and more


def rates(rounds: Sequence[Round], arrivals: Arrivals) -> dict[str, float | None]:
    """Returns offered and achieved requests per second and the lag in ms, the latter two of the median
    round; None for fewer than two requests. In closed loop nothing is offered: requests come as fast
    as they are served."""
    achieved, lags = [], []
    for each in rounds:
        assert each.client is not None, "under load requests come one by one"
        assert each.token_times_s is not None, "a client and times come together"
        rate, lag_s = _pace(each.client.due_s, [own[-1] for own in each.token_times_s])
        achieved.append(rate)
        lags.append(1000 * lag_s)
    due_s = arrivals.due_s or (0.0,)
    offered = _per_second(len(due_s) - 1, max(due_s) - min(due_s))
    return {"offered_rate": offered, "achieved_rate": _median(achieved), "lag_ms": _median(lags)}


def _pace(due_s: Sequence[float], took_s: Sequence[float]) -> tuple[float | None, float]:
    """Returns requests per second that ended in a round, and the lag in seconds."""
    ends_s = [due + took for due, took in zip(due_s, took_s, strict=True)]
    begin = min(due_s) + min(took_s)
    span = max(ends_s) - begin
    num_ended = min(sum(end > begin for end in ends_s), len(ends_s) - 1)
    return _per_second(num_ended, span), span - (max(due_s) - min(due_s))


def _per_second(num: int, span_s: float) -> float | None:
    return num / span_s if span_s > 0 else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def keeps_up(metrics: Mapping[str, Any], usual_ms: float) -> bool | None:
    """Returns whether requests end as fast as they come; None if the round is too short to tell.

    `usual_ms`: the median end-to-end latency at the lowest load.
    """
    offered, achieved = metrics["offered_rate"], metrics["achieved_rate"]
    if offered is None or (achieved is not None and achieved >= LEAST_KEPT_UP * offered):
        return True
    return False if metrics["lag_ms"] > MOST_BY_CHANCE * usual_ms else None


def judge_points(points: Sequence[dict[str, Any]]) -> None:
    """Notes at each point with figures whether the engine keeps up. Points rise."""
    shown = [each for each in points if each["metrics"]]
    for each in shown:
        each["keeps_up"] = keeps_up(each["metrics"], shown[0]["metrics"]["median_e2el_ms"])


def knee_of(points: Sequence[Point]) -> float | None:
    """Returns the load at the knee; None if too few points have figures, or the engine keeps up with
    none. Points rise."""
    shown = [each for each in points if each["metrics"] and each["metrics"]["achieved_rate"]]
    able = [each for each in shown if each["keeps_up"]]
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
    if not shown:
        return "; ".join(found) or "no point has figures"
    return "; ".join(found) or f"no knee: it needs {LEAST_POINTS} loads with figures"


def _limit(kind: str, shown: Sequence[Point]) -> str:
    """Returns the highest load up to which the engine keeps up with every one, and what comes next."""
    able = [*takewhile(lambda each: each["keeps_up"], shown)]
    words = f"keeps up with {kind} {able[-1]['load']:g}" if able else ""
    if len(able) == len(shown):
        return words
    beyond = shown[len(able)]
    if beyond["keeps_up"] is None:
        short = f"at {kind} {beyond['load']:g} the round is too short to tell"
        return f"{words}; {short}" if able else short
    return (
        f"{words}, not with {beyond['load']:g}"
        if able
        else f"falls behind at {kind} {beyond['load']:g}"
    )
