"""Cost growth: each engine over each axis, interleaved, every timed answer checked.

A lap visits all points of an axis. At each point the engines take turns, in reverse order in every
second lap. An axis has a time budget: a point that would exceed it is left out with a note, and further
laps are made while the budget lasts. `axes.py` defines points, `fits.py` fits curves.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, Self

from batchproof.bench.axes import USUAL_BUDGET, Axis, GrowthBudget, Point, default_axes
from batchproof.bench.fits import better_line, describe, fit_growth
from batchproof.bench.growth_runner import Answered, GrowthEngine, GrowthRunner, clock_for
from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.models.catalogue import ModelUnderTest

__all__ = ["GrowthBudget", "GrowthEngine", "clock_for", "measure_growth", "num_pieces"]


def measure_growth(
    subject: ModelUnderTest,
    engines: Sequence[GrowthEngine],
    axes: Sequence[Axis] | None = None,
    budget: GrowthBudget = USUAL_BUDGET,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Returns the entries of a result file's `growth`: one for each axis and engine. `axes` default to
    `default_axes()`; their points ascend.

    `on_step` is called with a label before each of the `num_pieces(...)` pieces of work, those left out
    included. Times are process time on a CPU with one thread, else wall-clock time with the device
    synchronised.
    """
    entries = []
    for axis in default_axes() if axes is None else axes:
        salt = secrets.token_hex(8)
        runners = [GrowthRunner(engine, subject, budget.call_limit_s, salt) for engine in engines]
        left = _TimeLeft.of(budget)
        for lap in range(budget.num_laps):
            for point in axis.points:
                on_turn = partial(_tell, on_step, f"growth over {axis.name} at {point.x:,}")
                _measure(runners, point, lap, left, on_turn)
        entries += [_entry(runner, axis) for runner in runners]
    return entries


def _tell(on_step: Callable[[str], None], what: str, name: str) -> None:
    on_step(f"{what}: {name}")


def num_pieces(
    engines: Sized, axes: Sequence[Axis] | None = None, budget: GrowthBudget = USUAL_BUDGET
) -> int:
    """Returns how often `on_step` is called for so many engines."""
    num_points = sum(len(axis.points) for axis in (default_axes() if axes is None else axes))
    return len(engines) * num_points * budget.num_laps


def _measure(
    runners: Sequence[GrowthRunner],
    point: Point,
    lap: int,
    left: _TimeLeft,
    on_turn: Callable[[str], None],
) -> None:
    """Runs one lap at one point and checks it before the next. Equal answers of two engines are checked
    once."""
    affordable = _affordable(runners, point, left)
    for each in runners if lap % 2 == 0 else reversed(runners):
        on_turn(each.engine.name)
        if each in affordable:
            each.run_lap(point, lap)
    settled: list[Answered] = []
    for each in affordable:
        each.judge(settled)


@dataclass(frozen=True, slots=True)
class _TimeLeft:
    """The time left for an axis; `until` is on the clock of `perf_counter`."""

    until: float
    lap_limit_s: float  # for one engine at one point, which leaves time for other laps

    @classmethod
    def of(cls, budget: GrowthBudget) -> Self:
        return cls(perf_counter() + budget.axis_s, budget.axis_s / 4)


def _affordable(runners: Sequence[GrowthRunner], point: Point, left: _TimeLeft) -> list[GrowthRunner]:
    """Returns the engines whose lap at this point fits into the time left, cheapest first
    considered."""
    taken = []
    left_s = max(0.0, left.until - perf_counter())
    willing = [each for each in runners if each.wants(point)]
    for each in sorted(willing, key=lambda runner: runner.expected_s(point)):
        expected_s, limit_s = each.expected_s(point), min(left_s, left.lap_limit_s)
        if expected_s <= limit_s:  # the first point has an expectation of 0, so it is always measured
            left_s -= expected_s
            taken.append(each)
        else:
            each.leave_out(point, limit_s)
    return [each for each in willing if each in taken]


def _entry(runner: GrowthRunner, axis: Axis) -> dict[str, Any]:
    """Returns the entry of a result file. An INVALID or UNVERIFIED one holds no figure."""
    entry = {"engine": runner.engine.name, **axis.header()}
    if runner.problem is not None or runner.refusal is not None:
        verdict = UNVERIFIED if runner.problem is None else INVALID
        reason = runner.problem or runner.refusal
        blank: dict[str, Any] = {
            "points": [],
            "fit": None,
            "line": None,
            "words": f"{verdict}: {reason}",
        }
        return entry | {"verdict": verdict, "reason": reason} | blank
    points = runner.points()
    samples = [(point["x"], point["seconds"]) for point in points]
    power, line = fit_growth(samples), better_line(samples)
    return entry | {
        "verdict": VALID,
        "reason": None,
        "points": points,
        "fit": None if power is None else asdict(power),
        "line": None if line is None else asdict(line),
        "words": "; ".join([describe(samples, axis.one, axis.many), *runner.notes()]),
    }
