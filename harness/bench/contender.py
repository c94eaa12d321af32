"""One engine in a comparison: it is built, watched through a first round, timed lap by lap, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from harness.api import Capability, Engine, Request, StepRecord
from harness.bench.drive import Round, serve
from harness.bench.memory import PeakMemory
from harness.bench.schedule import Forward
from harness.bench.spec import BenchWorkload
from harness.bench.verification import Verifier
from harness.errors import EngineHang, OracleError
from harness.trial import Trial
from harness.verdict import ConformanceFailure
from harness.world import require_same, settings_of

TOKEN_STRIDE = 7919  # prime to every vocabulary size in use: laps do not repeat each other


@dataclass
class Watched:
    """What the first round showed. It warms the engine up with the shapes of the laps, and is not
    timed: the model is being watched."""

    seconds: float  # compiling and capturing included
    trace: Sequence[StepRecord] = ()
    forwards: list[Forward] = field(default_factory=list)
    peak_memory_bytes: int | None = None


class Contender:
    """Rounds in `rounds`; `problem` says why there are none, or why they do not count."""

    def __init__(self, trial: Trial, workload: BenchWorkload, verifier: Verifier, limit_s: float):
        self.trial = trial
        self.verifier = verifier
        self.rounds: list[Round] = []
        self.watched: Watched | None = None
        self.build_s: float | None = None
        self.problem: str | None = None
        self.is_late = False  # the problem is only that it took too long
        self._workload = workload
        self._limit_s = limit_s
        self._engine: Engine | None = None

    @property
    def name(self) -> str:
        return self.trial.spec.name

    @property
    def is_stepping(self) -> bool:
        return Capability.STEPPING in self.trial.capabilities

    @property
    def is_running(self) -> bool:
        return self._engine is not None and self.problem is None

    def start(self) -> None:
        """Build the engine and give it the first round."""
        with self._telling():
            began = perf_counter()
            self._engine = self.trial.build(self._workload.config)
            self.build_s = perf_counter() - began
        if self.is_running:
            with self._telling():
                self._watch()

    def _watch(self) -> None:
        assert self._engine is not None, "`start` has built it"
        model = self.trial.subject.model
        memory, forwards = PeakMemory(model.device), []

        def note(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            input_ids = kwargs.get("input_ids", args[0] if args else None)
            if input_ids is not None and input_ids.dim() == 2:
                forwards.append(Forward(*input_ids.shape))

        memory.start(lambda: _one_token(model))
        hook = model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            first = self._serve(0)
        finally:
            hook.remove()
        trace = tuple(self.trial.trace_of(self._engine))
        self.watched = Watched(first.wall_s, trace, forwards, memory.stop())
        self.verifier.judge(0, self.requests(0), first.completions)

    def time_lap(self, lap: int) -> None:
        """One timed round; laps count from 1."""
        with self._telling():
            self.rounds.append(self._serve(lap))

    def _serve(self, lap: int) -> Round:
        assert self._engine is not None, "`start` has built it"
        model, arrivals_s = self.trial.subject.model, self._workload.arrivals_s
        requests, before = self.requests(lap), settings_of(self.trial.subject.model)
        try:
            served = serve(
                self._engine, requests, arrivals_s, model.device, self._limit_s, self.is_stepping
            )
            require_same(before, settings_of(model), "while the engine worked")
        finally:
            if torch.get_num_threads() != before["number of threads"]:  # the next engine's as well
                torch.set_num_threads(before["number of threads"])
        return served

    def requests(self, lap: int) -> tuple[Request, ...]:
        """The same lengths and caps with other tokens in each lap: answers and prefixes that an engine
        kept from the lap before are of no use to it."""
        return of_lap(self._workload.requests, lap, self.trial.subject.vocab_size)

    def judge_laps(self, on_lap: Callable[[], None]) -> None:
        for lap, each in enumerate(self.rounds, start=1):
            if self.problem is None:
                with self._telling():
                    self.verifier.judge(lap, self.requests(lap), each.completions)
            on_lap()

    def close(self) -> None:
        if self._engine is not None:
            with self._telling():
                self.trial.close(self._engine)
            self._engine = None

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What the engine does wrong ends its part in the comparison, and no other's."""
        try:
            yield
        except ConformanceFailure as failure:
            self.problem = self.problem or f"{failure.promise} is broken: {failure.finding}"
        except EngineHang as hang:  # it may be slow and right: the conformance tests tell a hang
            self.is_late = self.problem is None
            self.problem = self.problem or f"{hang} (--engine-time-limit)"
        except OracleError:
            raise  # ours, not the engine's
        except (Exception, SystemExit) as error:
            self.problem = self.problem or f"the engine raised {type(error).__name__}: {error}"


@torch.inference_mode()
def _one_token(model: PreTrainedModel) -> None:
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False)


def of_lap(requests: Sequence[Request], lap: int, vocab_size: int) -> tuple[Request, ...]:
    """Every token moved by the same number: prefixes that were shared still are."""
    shift = lap * TOKEN_STRIDE
    return tuple(
        replace(
            request,
            prompt_token_ids=tuple((t + shift) % vocab_size for t in request.prompt_token_ids),
        )
        for request in requests
    )
