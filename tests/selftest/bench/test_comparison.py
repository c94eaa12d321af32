"""A figure is shown only for answers that were right, each lap asks something new, and a liar that
looks fast comes out INVALID."""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    RowRecord,
    StepRecord,
)
from batchproof.bench.drive import Round, serve_at_once
from batchproof.bench.interleaved import clock_for, compare_engines
from batchproof.bench.result_rows import Terms
from batchproof.bench.spec import BenchSpec, Range
from batchproof.bench.tables import table
from batchproof.errors import UnsupportedModelError
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, resolve_engine
from batchproof.run.trial import Trial

MODEL = "gpt2-random"
SPEC = BenchSpec(
    name="small",
    why="quick",
    num_requests=5,
    prompt_len=Range(2, 6),
    cap=((1.0, Range(2, 6)),),
    slots=2,
)
TERMS = Terms(num_laps=2, clock="process")
ONE_LAP = replace(TERMS, num_laps=1)


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory(torch.device("cpu"), torch.float32, 60.0)


class Wrapper:
    """Answers as `static` does; each liar below adds its lie."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(self, model: Any, config: EngineConfig) -> None:
        self._inner: Any = resolve_engine("static").factory(model, config)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self._inner.generate(requests)


def compare(
    lab: Laboratory, *engines: str | type[Wrapper], spec: BenchSpec = SPEC, terms: Terms = TERMS
) -> dict[str, Any]:
    subject = lab.subject(MODEL)
    workload = spec.realise(subject.vocab_size, subject.context_len)
    trials = [_trial(lab, each) for each in engines]
    return compare_engines(trials, workload, terms, lambda _: None)


def _trial(lab: Laboratory, engine: str | type[Wrapper]) -> Trial:
    oracle = lab.oracle(MODEL)
    if isinstance(engine, type):
        named = EngineSpec(engine.__name__, engine)
        return Trial(lab, named, oracle, Promise.P1, engine.capabilities)
    return Trial(lab, resolve_engine(engine), oracle, Promise.P1)


def _rows(comparison: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["engine"]: row for row in comparison["rows"]}


def test_honest_engines_are_valid_and_every_completion_is_checked(lab: Laboratory) -> None:
    found = compare(lab, "reference", "static", "ragged")
    rows = _rows(found)
    assert [row["verdict"] for row in rows.values()] == ["VALID"] * 3
    assert all(row["verification"]["num_by_reference"] == 5 * 3 for row in rows.values())
    assert rows["ragged"]["interface"] == "stepping"
    assert rows["ragged"]["metrics"]["mean_ttft_ms"] > 0
    assert rows["static"]["metrics"]["mean_ttft_ms"] is None
    pairs = [(each["engine"], each["over"]) for each in found["ratios"]]
    assert pairs == [("static", "reference"), ("ragged", "reference"), ("ragged", "static")]
    found = compare(lab, "static", "ragged", terms=replace(TERMS, sample_size=0))
    assert {row["verdict"] for row in found["rows"]} == {"UNVERIFIED"}
    assert "--verify 0" in found["rows"][0]["reason"]
    assert found["ratios"] == []


class Parrot(Wrapper):
    """Answers a request id as it did before: right in a round that repeats an earlier one."""

    def __init__(self, model: Any, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._known: dict[str, Completion] = {}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        new = [request for request in requests if request.request_id not in self._known]
        self._known |= {c.request_id: c for c in (self._inner.generate(new) if new else [])}
        return [self._known[request.request_id] for request in requests]


class Sleeper(Wrapper):
    """Right, and never in a hurry."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        time.sleep(5)
        return super().generate(requests)


class Picky(Wrapper):
    def __init__(self, _model: object, _config: EngineConfig) -> None:
        raise UnsupportedModelError("not with two slots")


def test_in_a_sample_each_choice_is_scored_and_all_lengths_are_checked(lab: Laboratory) -> None:
    spec = replace(SPEC, num_requests=8, prompt_len=Range(10, 30))
    liars = "fault:cap_off_by_one", "fault:mask_ignores_sequence"
    rows = _rows(compare(lab, "static", *liars, spec=spec, terms=replace(TERMS, sample_size=6)))
    assert [row["verdict"] for row in rows.values()] == ["VALID", "INVALID", "INVALID"]
    checked = rows["static"]["verification"]
    assert (checked["num_completions"], checked["num_scored"]) == (24, 18)
    assert "not the best choice" in rows[liars[1]]["reason"]


class Spins(Wrapper):
    """Leaves a thread behind that computes on."""

    capabilities = frozenset({Capability.CLOSING})
    _is_over = False

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        threading.Thread(target=self._spin, daemon=True).start()
        return super().generate(requests)

    def _spin(self) -> None:
        while not self._is_over:
            sum(range(1000))

    def close(self) -> None:
        self._is_over = True


class LyingTrace(Wrapper):
    """Every step of it full, whatever was done."""

    capabilities = frozenset({Capability.TRACING})

    def __init__(self, model: Any, config: EngineConfig) -> None:
        super().__init__(model, config)
        rows = tuple(RowRecord(f"r{i}", 0, 500, True) for i in range(config.max_num_seqs))
        self.trace = [StepRecord(rows, (), (), (), ())] * 9


class InLargeBlocks(Wrapper):
    """Its blocks have at least 32 tokens, whatever is asked, and it says so."""

    capabilities = frozenset({Capability.TRACING})
    block_size_multiple = 32

    def __init__(self, model: Any, config: EngineConfig) -> None:
        limited = replace(config, num_blocks=64)
        self._inner: Any = resolve_engine("ragged-paged").factory(model, limited)

    @property
    def trace(self) -> list[StepRecord]:
        return self._inner.trace


def test_a_trace_is_judged_by_the_blocks_that_the_engine_was_given(lab: Laboratory) -> None:
    workload = replace(SPEC, prompt_len=Range(40, 60)).realise(256, 128)
    trial = Trial(lab, EngineSpec("large", InLargeBlocks), lab.oracle(MODEL), Promise.P1)
    (row,) = compare_engines([trial], workload, ONE_LAP, lambda _: None)["rows"]
    assert (row["verdict"], row["reason"]) == ("VALID", None)


class Damages(Wrapper):
    def __init__(self, model: Any, config: EngineConfig) -> None:
        super().__init__(model, config)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.0 + 1e-3)


def test_damage_to_the_model_leaves_no_figures_and_blames_its_engine_alone() -> None:
    own = Laboratory(torch.device("cpu"), torch.float32, 60.0)
    rows = _rows(compare(own, "static", Damages))
    assert [row["verdict"] for row in rows.values()] == ["UNVERIFIED", "INVALID"]
    assert all("weights and buffers changed" in row["reason"] for row in rows.values())
    assert rows["static"]["metrics"] is None


@pytest.mark.parametrize(
    ("shares", "clock"),
    [
        ([[1.0], [0.98]], "process"),
        ([[0.4], [0.35]], "process"),  # a busy machine: all of them wait for a core
        ([[1.0], [0.02]], "wall"),  # the second one's work is done elsewhere
    ],
)
def test_the_clock_is_that_of_the_wall_where_an_engine_stands_out(
    shares: list[list[float]], clock: str
) -> None:
    engines = [
        SimpleNamespace(rounds=[Round((), 2.0, 2.0 * share) for share in each], problem=None)
        for each in [*shares, []]
    ]
    assert clock_for(cast(Any, engines), "process") == clock


class InAChild(Wrapper):
    """As a released engine: its own process computes, and this one waits."""

    capabilities = frozenset({Capability.CLOSING})

    def __init__(self, model: Any, config: EngineConfig) -> None:
        super().__init__(model, config)
        code = "import time\nfor line in open(0):\n end = time.process_time() + 0.05\n"
        code += " while time.process_time() < end: pass\n print(flush=True)"
        self._child = Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        assert self._child.stdin, "it is a pipe"
        assert self._child.stdout, "it is a pipe"
        self._child.stdin.write(b"compute\n")
        self._child.stdin.flush()
        self._child.stdout.readline()
        return super().generate(requests)

    def close(self) -> None:
        self._child.communicate()


def test_what_a_process_of_the_engine_computes_is_counted(lab: Laboratory) -> None:
    row = _rows(compare(lab, "static", InAChild, terms=ONE_LAP))["InAChild"]
    assert min(each["process_s"] for each in row["rounds"]) > 0.05
    assert row["cores"] <= 1.1


class Greedy(Wrapper):
    """Takes all cores for itself, and for the engine after it."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        torch.set_num_threads(torch.get_num_threads() + 1)
        return super().generate(requests)


class Stepping(Wrapper):
    """Serves in as many slots as it likes."""

    capabilities = frozenset({Capability.STEPPING})

    def __init__(self, model: Any, config: EngineConfig) -> None:
        self._inner: Any = resolve_engine("ragged").factory(model, replace(config, max_num_seqs=5))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_engine_in_more_slots_than_asked_is_compared_with_none(lab: Laboratory) -> None:
    found = compare(lab, "ragged", Stepping, terms=ONE_LAP)
    assert {name: row["num_at_once"] for name, row in _rows(found).items()} == {
        "ragged": 2,
        "Stepping": 5,
    }
    assert [row["verdict"] for row in found["rows"]] == ["VALID", "VALID"]
    assert not found["ratios"]
    found["model"] = {"name": MODEL, "dtype": "float32"}
    assert "Stepping: more slots than asked, 5 at once; no ratio" in table([found])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("engine", "verdict", "words"),
    [
        (Parrot, "INVALID", "P1 parity is broken"),
        (Picky, "UNVERIFIED", "not with two slots"),
        (LyingTrace, "INVALID", ""),
        (Greedy, "INVALID", "number of threads"),
        (Sleeper, "UNVERIFIED", "generate did not return within 1 s (--engine-time-limit)"),
    ],
)
def test_a_lie_or_a_problem_of_one_engine_ends_no_other(
    lab: Laboratory, engine: str | type[Wrapper], verdict: str, words: str
) -> None:
    before = torch.get_num_threads()
    limit_s = 1.0 if engine is Sleeper else TERMS.time_limit_s
    found = compare(lab, engine, "static", terms=replace(ONE_LAP, time_limit_s=limit_s))
    row, other = found["rows"]
    assert (row["verdict"], other["verdict"], found["ratios"]) == (verdict, "VALID", [])
    assert (row["rounds"], row["metrics"], row["schedule"]) == ([], None, None)
    assert words in row["reason"]
    assert torch.get_num_threads() == before


def test_an_engine_that_works_on_between_rounds_is_invalid(lab: Laboratory) -> None:
    other, row = compare(lab, "static", Spins, terms=ONE_LAP)["rows"]
    harm = "something computes although no request is being served"
    assert (row["verdict"], row["reason"]) == ("INVALID", harm)
    assert (other["verdict"], other["metrics"]) == ("UNVERIFIED", None)


def test_what_is_put_off_to_the_first_look_is_done_before_the_clock_stops() -> None:
    blank: Any = [0, 0]  # a list that is filled in later

    class Lazy:
        """Its answers are worked out when they are read."""

        def generate(self, _requests: Sequence[Request]) -> Any:
            time.sleep(0.1)
            yield Completion("a", blank, FinishReason.LENGTH)

    round_ = serve_at_once(Lazy(), (Request("a", (1,), 2),), torch.device("cpu"), 5.0)
    blank[:] = 1, 2
    assert (round_.wall_s >= 0.1, round_.completions[0].token_ids) == (True, (0, 0))
