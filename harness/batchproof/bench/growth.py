"""Cost growth: each engine over each axis, interleaved, every timed answer checked.

A lap visits all points of an axis. At each point the engines take turns, in reverse order in every
second lap. An axis has a time budget: a point that would exceed it is left out with a note, and further
laps are made while the budget lasts. `axes.py` defines points, `fits.py` fits curves.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict
from time import perf_counter
from typing import Any

from batchproof.bench.axes import USUAL_BUDGET, Axis, GrowthBudget, Point
from batchproof.bench.fits import better_line, describe, fit_growth
from batchproof.bench.growth_runner import Answered, GrowthEngine, GrowthRunner
from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.models.catalogue import ModelUnderTest

__all__ = ["GrowthBudget", "GrowthEngine", "measure_growth", "num_pieces"]


def measure_growth(
    subject: ModelUnderTest,
    engines: Sequence[GrowthEngine],
    axes: Sequence[Axis],
    budget: GrowthBudget,
    on_step: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Returns the entries of a result file's `growth`: one for each axis and engine. The points of an
    axis ascend.

    `on_step` is called with a label before each of the `num_pieces(...)` pieces of work, those left out
    included. Times are process time on a CPU with one thread, else wall-clock time with the device
    synchronised.
    """
    entries = []
    for axis in axes:
        salt = secrets.token_hex(8)
        runners = [GrowthRunner(engine, subject, budget.call_limit_s, salt) for engine in engines]
        _sweep(runners, axis, budget, on_step)
        entries += [_entry(runner, axis) for runner in runners]
    return entries


def num_pieces(engines: Sized, axes: Sequence[Axis], budget: GrowthBudget = USUAL_BUDGET) -> int:
    """Returns how often `on_step` is called for so many engines."""
    return len(engines) * sum(len(axis.points) for axis in axes) * budget.num_laps


def _sweep(
    runners: Sequence[GrowthRunner], axis: Axis, budget: GrowthBudget, on_step: Callable[[str], None]
) -> None:
    """Runs all laps. Each point is checked before the next; equal answers of two engines are checked
    once."""
    until = perf_counter() + budget.axis_s
    for lap in range(budget.num_laps):
        for point in axis.points:
            left_s = max(0.0, until - perf_counter())
            affordable = _affordable(runners, point, left_s, lap_limit_s=budget.axis_s / 4)
            for each in runners if lap % 2 == 0 else reversed(runners):
                on_step(f"growth over {axis.name} at {point.x:,}: {each.engine.name}")
                if each in affordable:
                    each.run_lap(point, lap)
            settled: list[Answered] = []
            for each in affordable:
                each.judge(settled)


def _affordable(
    runners: Sequence[GrowthRunner], point: Point, left_s: float, lap_limit_s: float
) -> list[GrowthRunner]:
    """Returns the engines whose lap at this point fits into the time left for the axis, cheapest first
    considered. `lap_limit_s`, for one engine, leaves time for other laps."""
    taken = []
    willing = [each for each in runners if each.wants(point)]
    for each in sorted(willing, key=lambda runner: runner.expected_s(point)):
        expected_s, limit_s = each.expected_s(point), min(left_s, lap_limit_s)
        if expected_s <= limit_s:  # the first point has an expectation of 0, so it is always measured
            left_s -= expected_s
            taken.append(each)
        else:
            each.leave_out(point, limit_s)
    return [each for each in willing if each in taken]


def _entry(runner: GrowthRunner, axis: Axis) -> dict[str, Any]:
    """Returns the entry of a result file. An INVALID or UNVERIFIED one holds no figure."""
    verdict, reason = VALID, runner.problem or runner.refusal
    if reason is not None:
        verdict = UNVERIFIED if runner.problem is None else INVALID
    points = runner.points() if reason is None else []
    samples = [(point["x"], point["seconds"]) for point in points]
    power, line = fit_growth(samples), better_line(samples)
    words = f"{verdict}: {reason}"
    if reason is None:
        words = "; ".join([describe(samples, axis.one, axis.many), *runner.notes()])
    return {
        "engine": runner.engine.name,
        "axis": axis.name,
        "unit": axis.unit,
        "fixed": axis.fixed,
        "verdict": verdict,
        "reason": reason,
        "points": points,
        "fit": None if power is None else asdict(power),
        "line": None if line is None else asdict(line),
        "words": words,
    }
