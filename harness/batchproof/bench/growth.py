"""How the time of a decode step grows with the number of sequences in it.

Only `generate` is used, so any engine can be measured. The time of a step is the difference of two
calls on prompts of the same lengths whose caps differ by `NUM_STEPS`; the work before and after those
steps cancels. Engines take turns at each point, and every answer is checked.

The exponent is the slope of log time over log size, by least squares, over the upper half of the sizes,
where a fixed cost matters least. Its 95 % interval comes from the residuals (Student's t). The interval
also widens if the exponent changes over the range; it does not cover an error that all points share.
"""

import gc
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import log, sqrt
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, Self

import torch

from batchproof.api import Engine, EngineConfig, Request
from batchproof.bench.drive import Round, serve_at_once
from batchproof.bench.verification import Verifier, blaming, judging
from batchproof.records.benchmark import INVALID, UNVERIFIED, VALID
from batchproof.run.trial import Trial
from batchproof.statistics import slope_estimate

CONTEXT, NUM_STEPS = 64, 16
NUM_LAPS = 3  # at most
MIN_POINTS = 3  # a line through two points has no residual
LEAST_SHARE = 0.1  # of the wall time; with less, the work is done in another process
ALL_REQUESTS = 1 << 60  # sample size
Sample = tuple[float, float]  # a size, and the seconds it took; both above 0


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Seconds grow as `size ** exponent`; 95 % interval of the exponent; fitted on sizes `smallest`
    to `largest`."""

    exponent: float
    low: float
    high: float
    smallest: float
    largest: float

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self | None:
        """Fits the samples, ascending, above the geometric middle of their sizes, and at least the
        `MIN_POINTS` largest; None for fewer."""
        if len(samples) < MIN_POINTS:
            return None
        middle = sqrt(samples[0][0] * samples[-1][0])
        num_below = sum(size < middle * (1 - 1e-9) for size, _ in samples)
        upper = samples[min(num_below, len(samples) - MIN_POINTS) :]
        sizes, seconds = zip(*upper, strict=True)
        slope = slope_estimate([*map(log, sizes)], [*map(log, seconds)])
        assert slope.low is not None, "a slope through three points has an interval"
        assert slope.high is not None, "a slope through three points has an interval"
        return cls(slope.value, slope.low, slope.high, upper[0][0], upper[-1][0])


@dataclass(frozen=True, slots=True)
class Point:
    """Two calls with `num_sequences` in flight whose difference is `num_steps` decode steps, at a mean
    context of `CONTEXT` tokens, the token being fed not counted."""

    num_sequences: int
    prompt_len: int = CONTEXT - NUM_STEPS // 2
    num_steps: int = NUM_STEPS

    @property
    def caps(self) -> tuple[int, int]:
        """Those of the short and the long call. The first token comes from the prompt."""
        return 1, 1 + self.num_steps

    @property
    def config(self) -> EngineConfig:
        """The limits of the engine that makes the calls: no prompt is cut, or the first sequences would
        decode while the last are still fed. An engine that allocates its pool when built can size it,
        so that no call allocates one."""
        budget = self.num_sequences * self.prompt_len
        longest = self.prompt_len + self.caps[1]
        return EngineConfig(self.num_sequences, max(2048, budget), max_model_len=longest)

    def requests(self, cap: int, seed: str, vocab_size: int) -> tuple[Request, ...]:
        """Pseudo-random prompts without EOS. No two calls share a prefix, so a prefix cache does not
        help."""
        rng = Random(f"{seed} {cap}")
        prompts = [
            tuple(rng.randrange(vocab_size) for _ in range(self.prompt_len))
            for _ in range(self.num_sequences)
        ]
        return tuple(Request(f"r{n}", prompt, cap) for n, prompt in enumerate(prompts))


POINTS = tuple(Point(num_sequences) for num_sequences in (1, 2, 4, 8, 16, 32, 64))


def measure_growth(
    trials: Sequence[Trial],
    budget_s: float,
    call_limit_s: float,
    on_step: Callable[[str], None],
    points: Sequence[Point] = POINTS,
) -> list[dict[str, Any]]:
    """Returns an entry of a result file's `growth` for each engine.

    A lap visits all points; engines take turns in reverse order in every second lap. Once `budget_s`
    seconds of wall-clock time are spent, no further point is begun. `on_step` is called with a label
    before each piece of work.
    """
    until, salt = perf_counter() + budget_s, secrets.token_hex(8)
    engines = [GrowthEngine(trial, call_limit_s) for trial in trials]
    for lap in range(NUM_LAPS):
        for point in points:
            is_affordable = perf_counter() < until
            for each in engines if lap % 2 == 0 else reversed(engines):
                if is_affordable:
                    on_step(f"growth at {point.num_sequences} sequences: {each.name}")
                    each.run_lap(point, lap, f"{salt} {lap}")
    return [each.entry() for each in engines]


class GrowthEngine:
    """One engine on the axis: built for each lap of a point, timed, checked.

    Each of its tokens must be the best choice in float64, up to rounding.
    """

    def __init__(self, trial: Trial, call_limit_s: float) -> None:
        self.name = trial.spec.name
        self.verdict = VALID
        self.reason: str | None = None
        self._verifier = Verifier(trial.oracle, ALL_REQUESTS)
        self._trial = trial
        self._call_limit_s = call_limit_s
        self._seconds: dict[int, list[float]] = {}  # sequences -> seconds of a step in each lap

    def run_lap(self, point: Point, lap: int, seed: str) -> None:
        """Times both calls of a point on a fresh engine, the long one first in every second lap."""
        if self.verdict != VALID:
            return
        with blaming(self._accuse):
            with self._trial.engine(point.config) as engine:
                self._warm_up(engine, point, seed)
                gc.collect()  # no engine is charged for the garbage of another
                caps = point.caps if lap % 2 == 0 else point.caps[::-1]
                calls = {cap: self._call(engine, point, cap, seed) for cap in caps}
            for requests, served in calls.values():
                with judging():
                    self._verifier.judge(lap, requests, served.completions)
            short_s, long_s = (self._time_s(calls[cap][1]) for cap in point.caps)
            laps = self._seconds.setdefault(point.num_sequences, [])
            laps.append((long_s - short_s) / point.num_steps)

    def _warm_up(self, engine: Engine, point: Point, seed: str) -> None:
        """Makes one untimed call, so that one-time work is in no lap. Devices also specialise on shapes
        (graphs, pools), so there the call has the shape of the longest one; on a CPU a few tokens do.
        """
        if self._trial.subject.model.device.type == "cpu":
            point = Point(1, prompt_len=2, num_steps=1)
        self._call(engine, point, point.caps[1], f"{seed} warm-up")

    def _call(
        self, engine: Engine, point: Point, cap: int, seed: str
    ) -> tuple[Sequence[Request], Round]:
        subject = self._trial.subject
        requests = point.requests(cap, seed, subject.vocab_size)
        return requests, serve_at_once(engine, requests, subject.model.device, self._call_limit_s)

    def _time_s(self, served: Round) -> float:
        """Process time on a CPU with one thread, for an engine that works in this process; else wall
        time."""
        is_single = self._trial.subject.model.device.type == "cpu" and torch.get_num_threads() == 1
        is_here = served.process_s > LEAST_SHARE * served.wall_s
        return served.process_s if is_single and is_here else served.wall_s

    def _accuse(self, problem: str, is_blameless: bool) -> None:
        self.verdict, self.reason = UNVERIFIED if is_blameless else INVALID, problem

    def entry(self) -> dict[str, Any]:
        """The entry of a result file. An INVALID or UNVERIFIED one holds no figure, and a point whose
        steps are hidden by the noise of the prefill is left out."""
        points = [
            {
                "x": size,
                "seconds": median(each),
                "low": min(each),
                "high": max(each),
                "num_laps": len(each),
            }
            for size, each in self._seconds.items()
            if self.verdict == VALID and min(each) > 0
        ]
        power = PowerLaw.fit([(each["x"], each["seconds"]) for each in points])
        return {
            "engine": self.name,
            "axis": "sequences",
            "unit": "s per step",
            "fixed": {"context": CONTEXT},
            "verdict": self.verdict,
            "reason": self.reason,
            "points": points,
            "fit": None if power is None else asdict(power),
            "words": f"{self.verdict}: {self.reason}" if self.reason else words(points, power),
        }


def words(points: Sequence[dict[str, Any]], power: PowerLaw | None) -> str:
    if power is None:
        return f"too few points to fit a growth: {len(points)}; give more seconds with --growth-for"
    first, last = points[0], points[-1]
    return (
        f"grows as n^{power.exponent:.2f} [{power.low:.2f}, {power.high:.2f}] between "
        f"{power.smallest:,.0f} and {power.largest:,.0f} sequences; {last['x']} cost "
        f"{last['seconds'] / first['seconds']:.3g} times {first['x']}"
    )
