"""One engine in a growth sweep: built for a lap at a point, timed, judged, and booked."""

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

from batchproof.api import (
    Completion,
    Engine,
    EngineConfig,
    Request,
)
from batchproof.bench.axes import Point
from batchproof.bench.blame import blaming, judging
from batchproof.bench.drive import Round, serve_at_once
from batchproof.bench.fits import duration
from batchproof.bench.verification import Verifier
from batchproof.errors import EngineHang, UnsupportedModelError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.run.registry import REFERENCE
from batchproof.run.trial import Trial

Judge = Callable[[Sequence[Request], Sequence[Completion]], None]
Answered = tuple[tuple[Request, ...], tuple[Completion, ...]]  # one call, and what came back
NOTHING, EVERYTHING = 0, sys.maxsize  # sample sizes
LEAST_SHARE = 0.1  # of the wall clock: less, and the work is done elsewhere
MAX_GROWTH = 4.0  # of a lap from one point to the next: twice the tokens, all to all
WARM_UP_LAP = -1  # its prompts are those of no lap


@dataclass(frozen=True, slots=True)
class Entrant:
    """An engine that takes part. `judge` raises if an answer is wrong."""

    name: str
    build: Callable[[EngineConfig], AbstractContextManager[Engine]]
    judge: Judge

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """The reference's answers are right by definition: only their form is checked. Of others each
        token must be the best choice after those before it, in float64 and up to rounding."""
        is_exempt = trial.spec.name == REFERENCE and trial.subject.oracle is None
        verifier = Verifier(trial.oracle, NOTHING if is_exempt else EVERYTHING)
        return cls(trial.spec.name, trial.engine, partial(verifier.judge, 0))


@dataclass
class Runner:
    """One engine on one axis. `problem`: why nothing of it counts; `refusal`: why it does not serve
    this model; `end`: why it stopped before the last point."""

    entrant: Entrant
    subject: ModelUnderTest
    call_limit_s: float
    salt: str  # of the prompts: the same for all engines, and known to none before
    problem: str | None = None
    refusal: str | None = None
    end: str | None = None
    _seconds: dict[int, list[float]] = field(default_factory=dict)  # x -> what each lap found
    _laps_s: dict[int, float] = field(default_factory=dict)  # x -> what its calls took in a lap
    _unjudged: list[Answered] = field(default_factory=list)

    def wants(self, point: Point) -> bool:
        """Points come in ascending order, in each lap anew."""
        if self.problem is not None or self.refusal is not None:
            return False
        has = self.subject.context_len
        if self.end is None and point.num_positions > has:
            needed = f"{point.num_positions:,} positions are needed, the model has {has:,}"
            self.end = f"{point.x:,} and beyond left out: {needed}"
        return self.end is None or point.x in self._seconds

    def expected_s(self, point: Point) -> float:
        """Of a lap there: as before, else as much more than at the last point as that took more than
        the one before, within reason."""
        if point.x in self._laps_s:
            return self._laps_s[point.x]
        last = list(self._laps_s.values())[-2:]
        return last[-1] * min(max(1.0, last[-1] / last[0]), MAX_GROWTH) if last else 0.0

    def leave_out(self, point: Point, limit_s: float) -> None:
        """It would take too long. A further lap is left out without a word: its number is shown."""
        if point.x not in self._seconds:
            expected, limit = duration(self.expected_s(point)), duration(limit_s)
            what = f"a lap would take about {expected}, there are {limit} for it"
            self.end = f"{point.x:,} and beyond left out: {what}"

    def run_lap(self, point: Point, lap: int) -> None:
        """On a fresh engine: the calls of the point, in turn the shorter and the longer first."""
        try:
            with self._telling():
                self._run_lap(point, lap)
        except EngineHang as hang:  # it may be slow and right: the conformance tests tell a hang
            self._seconds.pop(point.x, None)
            self._unjudged.clear()
            self.end = f"{point.x:,} and beyond left out: {hang}"

    def _run_lap(self, point: Point, lap: int) -> None:
        with self.entrant.build(point.config) as engine:
            self._warm_up(engine, point)
            gc.collect()  # nobody pays for the garbage of the one before
            caps = point.caps if lap % 2 == 0 else point.caps[::-1]
            rounds = {cap: self._call(engine, self._requests(point, cap, lap)) for cap in caps}
            took_s = {cap: self._time(each) for cap, each in rounds.items()}
            extra_s = took_s[max(caps)] - (took_s[min(caps)] if len(caps) > 1 else 0.0)
            self._seconds.setdefault(point.x, []).append(extra_s / point.num_steps)
            self._laps_s[point.x] = sum(took_s.values())

    def _warm_up(self, engine: Engine, point: Point) -> None:
        """What an engine does at its first call belongs to no lap. On a device the shapes count as
        well, those of the longer call, or a graph is captured, or a pool grows, while it is timed. On a
        CPU they do not, and a few tokens will do."""
        if self.subject.model.device.type == "cpu":
            point = replace(point, num_sequences=1, prompt_len=2, short_cap=2, num_steps=1)
        self._call(engine, self._requests(point, max(point.caps), WARM_UP_LAP))
        self._unjudged.clear()

    def _call(self, engine: Engine, requests: tuple[Request, ...]) -> Round:
        served = serve_at_once(engine, requests, self.subject.model.device, self.call_limit_s)
        self._unjudged.append((requests, served.completions))
        return served

    def _time(self, served: Round) -> float:
        """An engine that works in another process has no time of its own worth counting."""
        works_here = served.process_s > LEAST_SHARE * served.wall_s
        is_process = clock_for(self.subject.model.device) == "process" and works_here
        return served.process_s if is_process else served.wall_s

    def _requests(self, point: Point, cap: int, lap: int) -> tuple[Request, ...]:
        return point.requests(cap, f"{self.salt} {lap}", self.subject.vocab_size)

    def judge(self, settled: list[Answered]) -> None:
        """All answers of the lap; no clock runs. What equals an answer that was found right is right as
        well, and what is found right is added to `settled`."""
        with self._telling(), judging():
            for answered in self._unjudged:
                if answered not in settled:
                    self.entrant.judge(*answered)
                    settled.append(answered)
        self._unjudged.clear()

    def points(self) -> list[dict[str, Any]]:
        """As in a result file. Those that noise has hidden are not among them."""
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
        """What a reader of the points must know."""
        hidden = [f"{x:,}" for x, each in self._seconds.items() if min(each) <= 0]
        single = [f"{point['x']:,}" for point in self.points() if point["num_laps"] == 1]
        found = []
        if hidden:
            found.append(f"{', '.join(hidden)} left out: the noise of the prefill hides the steps")
        if single:
            found.append(f"one lap at {', '.join(single)}, so no spread there")
        return found + ([self.end] if self.end else [])

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What the engine does wrong ends its part on this axis, and no other's."""
        with blaming(self._accuse):
            try:
                yield
            except UnsupportedModelError as error:
                self.refusal = str(error)

    def _accuse(self, problem: str) -> None:
        """What was found first stands."""
        self.problem = self.problem or problem


def clock_for(device: torch.device) -> str:
    """`process` on a CPU with one thread, else `wall`."""
    return "process" if device.type == "cpu" and torch.get_num_threads() == 1 else "wall"
