"""One engine in a growth sweep: built for a lap at a point, timed, checked, recorded."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Self

import torch

from batchproof.api import Completion, Engine, EngineConfig, Request
from batchproof.bench.axes import Point
from batchproof.bench.blame import blaming, judging
from batchproof.bench.drive import Round, serve_at_once
from batchproof.bench.fits import duration
from batchproof.bench.verification import Verifier
from batchproof.errors import EngineHang, UnsupportedModelError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.run.engine_names import REFERENCE
from batchproof.run.trial import Trial

Judge = Callable[[Sequence[Request], Sequence[Completion]], None]
Answered = tuple[tuple[Request, ...], tuple[Completion, ...]]  # one call, and what came back
NOTHING, EVERYTHING = 0, sys.maxsize  # sample sizes
LEAST_SHARE = 0.1  # of the wall time; with less, the work is done in another process
MAX_GROWTH = 4.0  # of a lap from one point to the next: twice the tokens at quadratic cost
WARM_UP_LAP = -1  # no lap has its prompts


@dataclass(frozen=True, slots=True)
class GrowthEngine:
    """An engine that takes part. `judge` raises `ConformanceFailure` for a wrong answer."""

    name: str
    build: Callable[[EngineConfig], AbstractContextManager[Engine]]
    judge: Judge

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """Returns the engine of a trial. Each of its tokens must be the best choice in float64, up to
        rounding; the reference on a model without an integer oracle is checked for form only."""
        is_exempt = trial.spec.name == REFERENCE and trial.subject.oracle is None
        verifier = Verifier(trial.oracle, NOTHING if is_exempt else EVERYTHING)
        return cls(trial.spec.name, trial.engine, partial(verifier.judge, 0))


@dataclass
class GrowthRunner:
    """One engine on one axis. `problem`: why nothing of it counts; `refusal`: why it does not serve
    this model; `end`: why it stopped before the last point."""

    engine: GrowthEngine
    subject: ModelUnderTest
    call_limit_s: float
    salt: str  # of the prompts: the same for all engines and unpredictable
    problem: str | None = None
    refusal: str | None = None
    end: str | None = None
    _seconds: dict[int, list[float]] = field(default_factory=dict)  # x -> seconds of each lap
    _laps_s: dict[int, float] = field(default_factory=dict)  # x -> seconds of all calls of a lap
    _unjudged: list[Answered] = field(default_factory=list)

    def wants(self, point: Point) -> bool:
        """Returns whether to measure this point. Points come in ascending order, anew in each lap."""
        if self.problem is not None or self.refusal is not None:
            return False
        has = self.subject.context_len
        if self.end is None and point.num_positions > has:
            needed = f"{point.num_positions:,} positions are needed, the model has {has:,}"
            self.end = f"{point.x:,} and beyond left out: {needed}"
        return self.end is None or point.x in self._seconds

    def expected_s(self, point: Point) -> float:
        """Returns the expected seconds of a lap at this point: the last measurement, else extrapolated
        from the previous two points (growth clamped to `MAX_GROWTH`)."""
        if point.x in self._laps_s:
            return self._laps_s[point.x]
        last = list(self._laps_s.values())[-2:]
        return last[-1] * min(max(1.0, last[-1] / last[0]), MAX_GROWTH) if last else 0.0

    def leave_out(self, point: Point, limit_s: float) -> None:
        """Ends the axis at this point, with a note, because a lap would exceed the limit. A further lap
        of a measured point is left out without a note: `num_laps` shows it."""
        if point.x not in self._seconds:
            expected, limit = duration(self.expected_s(point)), duration(limit_s)
            what = f"a lap would take about {expected}, there are {limit} for it"
            self.end = f"{point.x:,} and beyond left out: {what}"

    def run_lap(self, point: Point, lap: int) -> None:
        """Builds a fresh engine and times the calls of the point; the order of short and long call
        alternates between laps."""
        try:
            with self._blamed():
                self._run_lap(point, lap)
        except EngineHang as hang:  # possibly slow and right: hangs are for the conformance tests
            self._seconds.pop(point.x, None)
            self._unjudged.clear()
            self.end = f"{point.x:,} and beyond left out: {hang}"

    def _run_lap(self, point: Point, lap: int) -> None:
        with self.engine.build(point.config) as engine:
            self._warm_up(engine, point)
            gc.collect()  # no engine is charged for the garbage of another
            caps = point.caps if lap % 2 == 0 else point.caps[::-1]
            rounds = {cap: self._call(engine, self._requests(point, cap, lap)) for cap in caps}
            took_s = {cap: self._time(each) for cap, each in rounds.items()}
            extra_s = took_s[max(caps)] - (took_s[min(caps)] if len(caps) > 1 else 0.0)
            self._seconds.setdefault(point.x, []).append(extra_s / point.num_steps)
            self._laps_s[point.x] = sum(took_s.values())

    def _warm_up(self, engine: Engine, point: Point) -> None:
        """Makes one untimed call, so that one-time work is in no lap. Devices also specialise on shapes
        (graphs, pools), so there the call has the shape of the longest one; on a CPU a few tokens do.
        """
        if self.subject.model.device.type == "cpu":
            point = replace(point, num_sequences=1, prompt_len=2, short_cap=2, num_steps=1)
        self._call(engine, self._requests(point, max(point.caps), WARM_UP_LAP))
        self._unjudged.clear()

    def _call(self, engine: Engine, requests: tuple[Request, ...]) -> Round:
        served = serve_at_once(engine, requests, self.subject.model.device, self.call_limit_s)
        self._unjudged.append((requests, served.completions))
        return served

    def _time(self, served: Round) -> float:
        """Returns the seconds of a round. Process time is used only if the engine works in this
        process."""
        works_here = served.process_s > LEAST_SHARE * served.wall_s
        is_process = clock_for(self.subject.model.device) == "process" and works_here
        return served.process_s if is_process else served.wall_s

    def _requests(self, point: Point, cap: int, lap: int) -> tuple[Request, ...]:
        return point.requests(cap, f"{self.salt} {lap}", self.subject.vocab_size)

    def judge(self, settled: list[Answered]) -> None:
        """Checks all answers of the lap. An answer equal to one in `settled` is right; what is found
        right is added to it."""
        with self._blamed(), judging():
            for answered in self._unjudged:
                if answered not in settled:
                    self.engine.judge(*answered)
                    settled.append(answered)
        self._unjudged.clear()

    def points(self) -> list[dict[str, Any]]:
        """Returns the points as in a result file, without those whose time is hidden by noise."""
        return [
            {
                "x": x,
                "seconds": median(each),
                "low": min(each),
                "high": max(each),
                "num_laps": len(each),
            }
            for x, each in self._seconds.items()
            if min(each) > 0
        ]

    def notes(self) -> list[str]:
        """Returns what a reader of the points must know."""
        hidden = [f"{x:,}" for x, each in self._seconds.items() if min(each) <= 0]
        single = [f"{point['x']:,}" for point in self.points() if point["num_laps"] == 1]
        found = []
        if hidden:
            found.append(f"{', '.join(hidden)} left out: the noise of the prefill hides the steps")
        if single:
            found.append(f"one lap at {', '.join(single)}, so no spread there")
        return found + ([self.end] if self.end else [])

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Records what the engine raises as its problem or refusal; other engines go on."""
        with blaming(self._accuse):
            try:
                yield
            except UnsupportedModelError as error:
                self.refusal = str(error)

    def _accuse(self, problem: str) -> None:
        """Records a problem; the first one stands."""
        self.problem = self.problem or problem


def clock_for(device: torch.device) -> str:
    """Returns "process" on a CPU with one thread, else "wall"."""
    return "process" if device.type == "cpu" and torch.get_num_threads() == 1 else "wall"
