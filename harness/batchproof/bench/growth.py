"""Cost growth, measured: each engine over each axis, interleaved, every timed answer judged.

A lap goes through all points of an axis, and at each of them the engines take turns, forwards in one
lap and backwards in the next. An axis has a budget of time: a point that would not fit into what is
left is left out, in words, and further laps are made as far as the budget goes. `axes.py` says what a
point is, `fits.py` what the points show.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, Self

from batchproof.bench.axes import Axis, Point, default_axes
from batchproof.bench.entrant import (
    Answered,
    Entrant,
    Runner,
    clock_for,
)
from batchproof.bench.fits import better_line, describe, fit_growth
from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.models.catalogue import ModelUnderTest

__all__ = ["Effort", "Entrant", "clock_for", "measure_growth", "num_pieces"]


@dataclass(frozen=True, slots=True)
class Effort:
    """What one axis may cost, all engines together; by the wall clock."""

    num_laps: int = 3  # at most
    axis_s: float = 15.0  # the last lap begun may go beyond it
    call_limit_s: float = 120.0  # a point is left out if a call does not return within it


def measure_growth(
    subject: ModelUnderTest,
    entrants: Sequence[Entrant],
    axes: Sequence[Axis] | None = None,
    effort: Effort = Effort(),
    on_step: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """The entries of a result file's `growth`: one for each axis and engine. `axes` are the default
    ones, their points ascending.

    `on_step` is told before each of the `num_pieces(...)` pieces of work, those left out included.
    Times are of the process on a CPU with one thread, else of the wall clock, the device synchronised.
    """
    entries = []
    for axis in default_axes() if axes is None else axes:
        salt = secrets.token_hex(8)
        runners = [Runner(entrant, subject, effort.call_limit_s, salt) for entrant in entrants]
        purse = _Purse.of(effort)
        for lap in range(effort.num_laps):
            for point in axis.points:
                on_turn = partial(_tell, on_step, f"growth over {axis.name} at {point.x:,}")
                _measure(runners, point, lap, purse, on_turn)
        entries += [_entry(runner, axis) for runner in runners]
    return entries


def _tell(on_step: Callable[[str], None], what: str, name: str) -> None:
    on_step(f"{what}: {name}")


def num_pieces(entrants: Sized, axes: Sequence[Axis] | None = None, effort: Effort = Effort()) -> int:
    """How often `on_step` will be called for so many engines."""
    num_points = sum(len(axis.points) for axis in (default_axes() if axes is None else axes))
    return len(entrants) * num_points * effort.num_laps


def _measure(
    runners: Sequence[Runner], point: Point, lap: int, purse: _Purse, on_turn: Callable[[str], None]
) -> None:
    """One lap at one point, judged before the next. Equal answers of two engines are judged once."""
    affordable = _affordable(runners, point, purse)
    for each in runners if lap % 2 == 0 else reversed(runners):
        on_turn(each.entrant.name)
        if each in affordable:
            each.run_lap(point, lap)
    settled: list[Answered] = []
    for each in affordable:
        each.judge(settled)


@dataclass(frozen=True, slots=True)
class _Purse:
    """The time of an axis; `until` on the clock of `perf_counter`."""

    until: float
    lap_limit_s: float  # for one engine at one point, so that there is something left for other laps

    @classmethod
    def of(cls, effort: Effort) -> Self:
        return cls(perf_counter() + effort.axis_s, effort.axis_s / 4)


def _affordable(runners: Sequence[Runner], point: Point, purse: _Purse) -> list[Runner]:
    """Who can do a lap there in the time left; those that need least are served first."""
    taken = []
    left_s = max(0.0, purse.until - perf_counter())
    willing = [each for each in runners if each.wants(point)]
    for each in sorted(willing, key=lambda runner: runner.expected_s(point)):
        expected_s, limit_s = each.expected_s(point), min(left_s, purse.lap_limit_s)
        if expected_s <= limit_s:  # a first point is expected to take none, and is always measured
            left_s -= expected_s
            taken.append(each)
        else:
            each.leave_out(point, limit_s)
    return [each for each in willing if each in taken]


def _entry(runner: Runner, axis: Axis) -> dict[str, Any]:
    """INVALID shows no figure; UNVERIFIED has none."""
    entry = {"engine": runner.entrant.name, **axis.header()}
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
