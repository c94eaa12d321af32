"""Engines timed on one workload, interleaved: A B C, C B A, A B C, ...

A slow minute of the machine slows all engines alike, and ratios are taken within a lap. All answers of
all laps are checked after the last lap, outside the timed sections. No engine may disturb another: the
model and torch's switches must stay as they were when the model was loaded, before any engine.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from time import sleep
from typing import Any

from batchproof.bench.hardware import CpuMeter
from batchproof.bench.ratios import paired_ratio
from batchproof.bench.result_rows import Terms, is_compared, row_of, times_s
from batchproof.bench.spec import BenchWorkload, Laps
from batchproof.bench.timed_engine import TimedEngine
from batchproof.bench.verification import MAX_TOKENS_CHECKED_IN_FULL, SAMPLE_SIZE, Verifier
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.environment import require_same, shared_of
from batchproof.findings.finding_text import first_line
from batchproof.run.trial import Trial

LEAST_SHARE = 0.5  # of wall time spent computing, relative to the engine with the largest share
NUM_LISTENS, LISTEN_S = 3, 0.02
BUSY = "something computes although no request is being served"


def compare_engines(
    trials: Sequence[Trial], workload: BenchWorkload, terms: Terms, on_round: Callable[[str], None]
) -> dict[str, Any]:
    """Times all trials' engines on one workload and returns one entry of a result file's `comparisons`,
    without its model. All trials share one model.
    `on_round` is called with a label before each piece of work."""
    laps = Laps(workload.requests, trials[0].subject.vocab_size)
    engines = _timed_engines(trials, workload, laps, terms, on_round)
    terms = replace(terms, clock=clock_for(engines, terms.clock))
    rows = [row_of(each, workload, terms) for each in engines]
    return {
        "workload": {
            "name": workload.spec.name,
            "hash": workload.hash,
            "spec": workload.spec.as_dict(),
            "totals": workload.totals(),
        },
        "clock": terms.clock,
        "lap_seeds": laps.seeds,
        "rows": rows,
        "ratios": _ratios(engines, rows, terms.clock, workload.config.max_num_seqs),
    }


def _timed_engines(
    trials: Sequence[Trial],
    workload: BenchWorkload,
    laps: Laps,
    terms: Terms,
    on_round: Callable[[str], None],
) -> list[TimedEngine]:
    """Runs all laps of all engines, checks every answer, and returns the engines, which are closed."""
    size, num_tokens = terms.sample_size, workload.totals()["max_output_tokens"]
    if size is None and num_tokens > MAX_TOKENS_CHECKED_IN_FULL:
        size = SAMPLE_SIZE
    engines = [
        TimedEngine(trial, workload.config, laps, Verifier(trial.oracle, size), terms.time_limit_s)
        for trial in trials
    ]
    guard = _Guard(engines, listens=terms.clock == "process")
    try:
        _run_laps(engines, terms.num_laps, guard, on_round)
    finally:
        for each in engines:
            each.close()
    guard.finds_harm(None)
    for each in engines:
        if terms.measures_memory and each.problem is None:
            on_round(f"{each.name}: memory")
            each.measure_memory()
    for each in engines:
        each.judge_rounds(partial(on_round, f"checking {each.name}"))
    return engines


def _run_laps(
    engines: Sequence[TimedEngine], num_laps: int, guard: "_Guard", on_round: Callable[[str], None]
) -> None:
    if guard.finds_harm(None):  # engines were built before, to learn their capabilities
        return
    for each in engines:
        on_round(f"{each.name}: first round")
        each.start()
        on_round(f"{each.name}: first round checked")
        if guard.finds_harm(each):
            return
    for number in range(1, num_laps + 1):
        for each in engines if number % 2 else reversed(engines):
            on_round(f"{each.name}: round {number} of {num_laps}")
            if not each.is_running:
                continue
            gc.collect()  # no engine is charged for the garbage of another
            each.time_lap(number)
            if guard.finds_noise(each):
                return


class _Guard:
    """Voids the figures of all engines if one has disturbed the others. Only that one, if known, is
    INVALID; the others are UNVERIFIED."""

    def __init__(self, engines: Sequence[TimedEngine], listens: bool) -> None:
        trial = engines[0].trial
        self._model = trial.subject.model
        self._before = trial.lab.watch.as_loaded(trial.subject)
        self._engines = engines
        self._listens = listens

    def finds_harm(self, culprit: TimedEngine | None) -> bool:
        """Whether the model or a switch has changed, or something computes unasked."""
        try:
            require_same(self._before, shared_of(self._model), "since it was loaded")
        except BrokenPromise as error:
            self._void(first_line(error.finding), culprit)
            return True
        return self.finds_noise(culprit)

    def finds_noise(self, culprit: TimedEngine | None) -> bool:
        """Whether something computes unasked: the check that is cheap enough between laps. It takes
        every sample to show work: the tail of earlier work ends, a busy thread does not."""
        is_busy = self._listens and all(_works_while_we_sleep() for _ in range(NUM_LISTENS))
        if is_busy:
            self._void(BUSY, culprit)
        return is_busy

    def _void(self, harm: str, culprit: TimedEngine | None) -> None:
        if culprit is not None:
            culprit.accuse(harm)
        who = "an engine of this run" if culprit is None else f"engine {culprit.name!r}"
        for each in self._engines:
            each.accuse(f"{who} has done harm, so nothing here counts: {harm}", is_blameless=True)


def _works_while_we_sleep() -> bool:
    meter = CpuMeter()
    sleep(LISTEN_S)
    meter.stop()
    return meter.seconds() > LISTEN_S / 4  # a busy thread may share its core


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


def _ratios(
    engines: Sequence[TimedEngine], rows: Sequence[Mapping[str, Any]], clock: str, slots: int
) -> list[dict[str, Any]]:
    """Returns the ratio of each engine over each one named before it, where both are VALID and neither
    was seen to use more slots than it was given."""
    valid = [each for each, row in zip(engines, rows, strict=True) if is_compared(row, slots)]
    return [
        {"engine": later.name, "over": earlier.name, "clock": clock}
        | asdict(paired_ratio(times_s(later.rounds, clock), times_s(earlier.rounds, clock)))
        for earlier, later in combinations(valid, 2)
    ]
