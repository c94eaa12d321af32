"""Runs one set of requests through several engines, timed, traced and judged."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import cast

from batchproof.api import Completion, EngineConfig, Limits, Request, StepRecord, TracingEngine
from batchproof.checks.answers import completion_findings
from batchproof.checks.broken import BrokenPromise, require
from batchproof.errors import UsageError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle
from batchproof.records.trial_record import Ledger
from batchproof.run.devices import synchronise
from batchproof.run.registry import resolve_engine
from batchproof.run.timeline import Timeline, build_timeline, waves

LETTERS = ascii_uppercase  # each names one request, which limits requests to 26


@dataclass(frozen=True, slots=True)
class Experiment:
    """The requests and the model. Request ids are letters; `texts` holds the prompt of each letter."""

    subject: ModelUnderTest
    requests: tuple[Request, ...]
    texts: dict[str, str]
    num_slots: int

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(max_num_seqs=self.num_slots)

    @property
    def prompt_lens(self) -> dict[str, int]:
        return {request.request_id: len(request.prompt_token_ids) for request in self.requests}


def make_experiment(
    subject: ModelUnderTest, asked: Sequence[tuple[str, int]], num_slots: int
) -> Experiment:
    """Returns requests with the given prompts and caps. Raises `UsageError` for one that the model
    cannot serve.
    """
    if len(asked) > len(LETTERS):
        raise UsageError(f"--prompt is given {len(asked)} times, but there are {len(LETTERS)} letters")
    case = Experiment(subject, (), {}, num_slots)
    limits = Limits.of(subject.model, case.config)
    requests = []
    for letter, (prompt, cap) in zip(LETTERS, asked, strict=False):
        try:
            request = Request(letter, subject.encode(prompt), cap)
        except UnicodeEncodeError as error:
            raise UsageError(f"--prompt {prompt!r} is no valid UTF-8: {error.reason}") from error
        refusal = limits.refusal(request)
        if refusal is not None:
            raise UsageError(f"--prompt {prompt!r} cannot be served: {refusal}")
        requests.append(request)
    texts = {letter: prompt for letter, (prompt, _) in zip(LETTERS, asked, strict=False)}
    return Experiment(subject, tuple(requests), texts, num_slots)


@dataclass(frozen=True, slots=True)
class TimedRun:
    name: str
    completions: tuple[Completion, ...]
    trace: tuple[StepRecord, ...]
    timeline: Timeline
    num_fed: int  # token positions sent through the model, padding and idle rows included
    wall_time_s: float


def run_timed(name: str, case: Experiment, has_waves: bool) -> TimedRun:
    """Builds the engine, warms it up on the same requests, then times it once."""
    engine = resolve_engine(name).factory(case.subject.model, case.config)
    traced = cast(TracingEngine, engine)  # all engines of the demo have a trace
    engine.generate(list(case.requests))
    num_warm_up_steps = len(traced.trace)
    synchronise(case.subject.model.device)
    start = time.perf_counter()
    completions = engine.generate(list(case.requests))
    synchronise(case.subject.model.device)
    wall_time_s = time.perf_counter() - start
    trace = tuple(traced.trace[num_warm_up_steps:])
    barriers = [wave.start - 1 for wave in waves(trace)[1:]] if has_waves else []
    timeline = build_timeline(trace, case.num_slots, case.prompt_lens, barriers)
    num_fed = _num_fed_in_waves(trace) if has_waves else sum(map(num_tokens, trace))
    return TimedRun(name, tuple(completions), trace, timeline, num_fed, wall_time_s)


def num_tokens(record: StepRecord) -> int:
    """Returns the number of tokens of requests fed in a step."""
    return sum(row.query_len for row in record.rows)


def _num_fed_in_waves(trace: Sequence[StepRecord]) -> int:
    """Returns the token positions of a static batch, a rectangle: as wide as its longest row, with
    finished rows fed on.
    """
    num_fed = 0
    for wave in waves(trace):
        num_rows = len(trace[wave.start].rows)
        num_fed += num_rows * sum(max(row.query_len for row in trace[i].rows) for i in wave)
    return num_fed


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of comparing one engine's answers with per-prompt generation."""

    num_equal: int
    ledger: Ledger
    near_ties: tuple[str, ...]  # in words
    failures: tuple[str, ...]


def judge(case: Experiment, completions: Sequence[Completion], oracle: Oracle) -> Judgement:
    """Judges each answer by itself, so that one wrong answer does not hide the next."""
    ledger, num_equal = Ledger(), 0
    near_ties: list[str] = []
    failures: list[str] = []
    for request, completion in zip(case.requests, completions, strict=True):
        expected, _ = oracle.expected(request)
        try:
            require(completion_findings([request], [completion], oracle, ledger))
        except BrokenPromise as error:
            failures.append(str(error))
            continue
        if completion.token_ids == expected:
            num_equal += 1
        elif case.subject.oracle is not None:  # no rounding excuses a constructed model
            failures.append(f"request {request.request_id!r}: the reference engine itself is wrong")
        else:
            near_ties.append(_first_difference(completion, expected))
    return Judgement(num_equal, ledger, tuple(near_ties), tuple(failures))


def _first_difference(completion: Completion, expected: tuple[int, ...]) -> str:
    pairs = enumerate(zip(completion.token_ids, expected, strict=False))
    step, (got, alone) = next((step, pair) for step, pair in pairs if pair[0] != pair[1])
    return f"{completion.request_id} token {step + 1}: {got} instead of {alone}, within rounding"
