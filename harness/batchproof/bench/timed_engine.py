"""One engine in a measurement: built, observed through a first round, timed lap by lap, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from batchproof.api import Engine, EngineConfig, StepRecord
from batchproof.bench.drive import Round, serve
from batchproof.bench.memory import peak_memory
from batchproof.bench.spec import Laps
from batchproof.bench.verification import Verifier, blaming
from batchproof.checks.broken import require
from batchproof.checks.conduct import conduct_findings
from batchproof.checks.environment import require_same, settings_of
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload


@dataclass(eq=False)
class TimedEngine:
    """The measurements of one engine. A first round warms it up with the shapes of the laps and is not
    part of the figures."""

    trial: Trial
    config: EngineConfig
    laps: Laps
    verifier: Verifier
    time_limit_s: float  # of a round
    build_s: float | None = None
    first_round_s: float | None = None  # compiling and capturing included
    trace: Sequence[StepRecord] = ()  # of the first round; empty for an engine without one
    rounds: list[Round] = field(default_factory=list)  # the timed ones
    peak_memory: int | str | None = None  # bytes, or why it is unknown; None: it was not asked for
    problem: str | None = None  # why there are none, or why they do not count
    is_blameless: bool = False  # the problem is a time limit or another engine
    _engine: Engine | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.trial.spec.name

    @property
    def is_running(self) -> bool:
        """Whether the engine has been built and no problem was found."""
        return self._engine is not None and self.problem is None

    def start(self) -> None:
        """Builds the engine, runs the first round, and checks its answers and its trace, because
        figures are made of it."""
        with blaming(self.accuse):
            began = perf_counter()
            self._engine = self.trial.build(self.config)
            self.build_s = perf_counter() - began
            first = self._serve(0)
            self.first_round_s = first.wall_s
            self.trace = tuple(self.trial.trace_of(self._engine))
            findings = conduct_findings(
                Workload(self.laps[0], self.trial.fitted(self.config)),
                Outcome(first.completions),
                self.trace,
                self.trial.capabilities,
                delay=self.trial.scheduling_delay,
            )
            require(findings)
            self.verifier.judge(0, self.laps[0], first.completions)

    def time_lap(self, number: int) -> None:
        """Runs one timed round; they count from 1."""
        with blaming(self.accuse):
            self.rounds.append(self._serve(number))

    def _serve(self, number: int) -> Round:
        assert self._engine is not None, "`start` has built it"
        model, requests = self.trial.subject.model, self.laps[number]
        before = settings_of(model)
        try:
            capabilities = self.trial.capabilities
            served = serve(self._engine, requests, model.device, self.time_limit_s, capabilities)
            require_same(before, settings_of(model), "while the engine worked")
        finally:
            if torch.get_num_threads() != before["number of threads"]:  # or the next engine has it too
                torch.set_num_threads(before["number of threads"])
        return served

    def judge_rounds(self, on_round: Callable[[], None]) -> None:
        """Checks the answers of all timed rounds up to the first wrong one; calls `on_round` after
        each."""
        for number, each in enumerate(self.rounds, start=1):
            if self.problem is None:
                with blaming(self.accuse):
                    self.verifier.judge(number, self.laps[number], each.completions)
            on_round()

    def measure_memory(self) -> None:
        """Serves the first round once more, in a process of its own."""
        asked = self.trial, self.config, self.laps[0]
        self.peak_memory = peak_memory(*asked, self.time_limit_s)

    def close(self) -> None:
        if self._engine is not None:
            with blaming(self.accuse):
                self.trial.close(self._engine)
            self._engine = None

    def accuse(self, problem: str, is_blameless: bool = False) -> None:
        """Records a problem; the first one stands. `is_blameless` marks a problem that is not a fault
        of this engine (a time limit, a refusal, harm done by another): the row is UNVERIFIED, not
        INVALID."""
        if self.problem is None:
            self.problem, self.is_blameless = problem, is_blameless
