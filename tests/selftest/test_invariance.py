"""Invariance: each grade has an engine that reaches it, and a run whose control fails has no grades."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.__main__ import main
from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFactory,
    Request,
    TokenEvent,
)
from batchproof.errors import UnsupportedModelError, UsageError
from batchproof.findings.causes import Cause
from batchproof.findings.finding import Rule
from batchproof.invariance import axes, measure
from batchproof.invariance.axes import AXES, NEIGHBOUR
from batchproof.invariance.measure import declared_grades, measure_axis, measure_engine, require_grade
from batchproof.judgement.invariance_command import invariance_page
from batchproof.places import ROOT
from batchproof.records.invariance import INVARIANCE, UNMEASURED, AxisRecord
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, reference_factory, resolve_engine
from batchproof.run.trial import Trial
from batchproof.workload.workloads import PAUSE, Interruption, Workload
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput

ULP, LARGE = 2.0**-23, 1e-3  # added to logits; the second is far beyond kappa E, and changes no token
LOGITS = frozenset({Capability.LOGITS})
RANDOM, HASH, ADAPTED = "llama-random", "gpt2-hash", "mistral-window"
Change = Callable[[Completion, Sequence[Request]], Completion]


@cache
def answered(model: PreTrainedModel, config: EngineConfig, request: Request) -> Completion:
    """Returns the answer to a prompt alone, computed once: its bits are the same each time."""
    (completion,) = reference_factory()(model, config).generate([request])
    return completion


class Changed:
    """Answers each prompt alone, and then alters the completions by the whole call."""

    capabilities = LOGITS

    def __init__(self, model: PreTrainedModel, config: EngineConfig, change: Change) -> None:
        self._model, self._config, self._change = model, config, change

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._change(self._alone(each), requests) for each in requests]

    def _alone(self, request: Request) -> Completion:
        plain = replace(request, request_id="", adapter=None, grammar=None)
        return replace(answered(self._model, self._config, plain), request_id=request.request_id)

    def load_adapter(self, name: str, path: str) -> None:
        """It answers as without."""

    def unload_adapter(self, name: str) -> None: ...


def engine(change: Change) -> EngineFactory:
    return lambda model, config: Changed(model, config, change)


def contents_of_others(requests: Sequence[Request]) -> int:
    others = [each for each in requests if each.request_id.startswith(NEIGHBOUR)]
    return sum(sum(each.prompt_token_ids) for each in others)


def what_others_name(requests: Sequence[Request]) -> int:
    others = [each for each in requests if each.request_id.startswith(NEIGHBOUR)]
    return sum(each.adapter is not None or each.grammar is not None for each in others)


def moving(seed_of: Callable[[Sequence[Request]], int], by: float) -> Change:
    """Moves each logit by another amount, for all moved alike are the same function."""

    def moved(completion: Completion, requests: Sequence[Request]) -> Completion:
        assert completion.logits is not None
        generator = torch.Generator().manual_seed(seed_of(requests))
        drawn = torch.rand(completion.logits.shape, generator=generator)
        return replace(completion, logits=completion.logits + by * drawn * completion.logits.abs())

    return moved


noise_of_the_batch_size = moving(len, ULP * 2)
noise_of_the_neighbours = moving(contents_of_others, ULP * 2)
noise_of_what_others_name = moving(what_others_name, ULP * 2)
far_by_the_batch_size = moving(len, LARGE)


def exact(completion: Completion, _requests: Sequence[Request]) -> Completion:
    return completion


def token_of_the_neighbours(completion: Completion, requests: Sequence[Request]) -> Completion:
    *start, last = completion.token_ids
    return replace(completion, token_ids=(*start, (last + contents_of_others(requests)) % 256))


def without_logits(completion: Completion, _requests: Sequence[Request]) -> Completion:
    return replace(completion, logits=None)


def always_the_same(completion: Completion, _requests: Sequence[Request]) -> Completion:
    return replace(completion, token_ids=(1,) * 8, logits=torch.zeros(8, 256))


def raising(_completion: Completion, _requests: Sequence[Request]) -> Completion:
    raise ValueError("out of luck")


@pytest.fixture(scope="module")
def lab(one_thread: None) -> Laboratory:  # noqa: ARG001
    """On one thread, as the command measures."""
    return Laboratory(torch.device("cpu"), torch.float32, 30.0)


@pytest.fixture(autouse=True)
def few_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement takes more and larger batches."""
    monkeypatch.setattr(axes, "LENGTHS", (9, 14, 7, 18, 11))
    monkeypatch.setattr(axes, "BATCH_SIZES", (2, 3))


def along(
    lab: Laboratory,
    factory: EngineFactory,
    axis: str,
    model: str = RANDOM,
    less: frozenset[Capability] = frozenset(),
) -> AxisRecord:
    """Grades the engine with all that it can do, except for `less`."""
    spec = EngineSpec(repr(factory), factory)
    has = lab.capabilities(spec, lab.subject(model)) - less
    return measure_axis(Trial(lab, spec, lab.oracle(model), Promise.P20, has), AXES[axis], seed=0)


class Unsettled(RaggedEngine):
    """Moves each logit by another amount from the first pause on."""

    has_paused = False

    def pause(self) -> None:
        super().pause()
        self.has_paused = True

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._packed_logits(plan)
        return logits + self.has_paused * LARGE * torch.rand(logits.shape) * logits.abs()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("factory", "axis", "grade", "evidence", "num_comparisons"),
    [
        (engine(exact), "batch", "B", "not shown", 5),
        (engine(exact), "restart", "S", "by construction", 5),
        (engine(noise_of_the_batch_size), "batch", "S", "not shown", 4),
        (RaggedEngine, "interruption", "S", "by construction", 4),
        (Unsettled, "interruption", "-", "by construction", 4),
        (resolve_engine("paged?offload=16&batch_invariant=true").factory, "offload", "B", "shown", 5),
    ],
)
def test_each_grade_is_reached(
    lab: Laboratory, factory: EngineFactory, axis: str, grade: str, evidence: str, num_comparisons: int
) -> None:
    """E and T are reached by engines that declare more, below."""
    record = along(lab, factory, axis)
    assert (record.grade, record.evidence, record.reason) == (grade, evidence, "")
    assert record.num_comparisons == num_comparisons


def test_what_cannot_be_graded_has_a_reason(lab: Laboratory) -> None:
    record = along(lab, engine(without_logits), "order", HASH, LOGITS)
    assert (record.grade, record.worst) == ("T", None), "without logits the best grade"
    assert "near-ties" in along(lab, engine(without_logits), "order", RANDOM, LOGITS).reason
    record = along(lab, engine(raising), "batch")
    assert (record.grade, record.reason) == (UNMEASURED, "the engine raised ValueError: out of luck")
    assert record.has_failed
    for name, axis, reason in (
        ("reference", "chunking", "the engine has no chunked_prefill"),
        ("static", "interruption", "the engine has no interruption"),
        ("static", "arrival", "show it in 0 of 4 comparisons: joins running decodes"),
        ("paged", "offload", ""),
    ):
        record = along(lab, resolve_engine(name).factory, axis)
        assert (record.grade, record.has_failed) == (UNMEASURED, False)
        assert reason in record.reason


def test_an_interruption_is_met_in_the_middle_of_an_answer() -> None:
    late = Workload((Request("kept", (1, 2), 4),), interruptions=(Interruption(2, PAUSE),))
    told = [(step, TokenEvent("kept", 1)) for step in (0, 1)]
    with pytest.raises(measure.NotMeasuredError, match=r"within steps 0 to 1, not across \[2\]"):
        measure.require_in_the_middle(late, told)


def held(
    lab: Laboratory, change: Change, declared: object, model: str, has: frozenset[Capability] = LOGITS
) -> Trial:
    """Holds the engine to what it declares. Returns the trial, which counts."""

    def factory(model: PreTrainedModel, config: EngineConfig) -> Engine:
        built = engine(change)(model, config)
        built.invariance = declared  # type: ignore[attr-defined]
        return built

    trial = Trial(lab, EngineSpec("mine", factory), lab.oracle(model), Promise.P20, has)
    for axis, grade in declared_grades(trial).items():
        require_grade(trial, axis, grade)
    return trial


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("change", "kept", "broken", "got"),
    [
        (noise_of_the_neighbours, {"batch": "E", "neighbours": "E"}, {"batch": "S"}, "E"),
        (far_by_the_batch_size, {"batch": "T"}, {"batch": "E"}, "T"),
        (token_of_the_neighbours, {}, {"neighbours": "T"}, "-"),
        (exact, {"batch": "B", "neighbours": "S", "adapters": "B", "grammars": "S"}, {}, ""),
        (noise_of_what_others_name, {"adapters": "S", "batch": "B"}, {"adapters": "B"}, "S"),
        (noise_of_what_others_name, {"grammars": "E"}, {"grammars": "S"}, "E"),
    ],
)
def test_an_engine_is_held_to_the_grade_that_it_declares(
    lab: Laboratory, change: Change, kept: dict[str, str], broken: dict[str, str], got: str
) -> None:
    model = HASH if change in (far_by_the_batch_size, token_of_the_neighbours) else ADAPTED
    has = LOGITS | {Capability.ADAPTERS, Capability.STRUCTURED}
    if kept:
        assert held(lab, change, kept, model, has).ledger.num_requests == 2 * len(kept)
    for axis, letter in broken.items():
        with pytest.raises(ConformanceFailure) as caught:
            held(lab, change, broken, model, has)
        failure = caught.value.failure
        cause = failure.rule.cause
        assert (failure.rule, failure.promise, cause) == (Rule.INVARIANCE, Promise.P20, Cause.SHAPES)
        words = f"the grade along {axis} is {got}, but the engine declares {letter}"
        assert words in str(caught.value)
        assert failure.scene.other


def test_a_failed_control_or_a_refused_model_gives_no_grades(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(_model: object, _config: EngineConfig) -> Engine:
        raise UnsupportedModelError("no Llamas")

    def refusal(factory: EngineFactory) -> str:
        spec = EngineSpec(repr(factory), factory)
        record = measure_engine(lab, spec, RANDOM, [AXES["batch"]], seed=0)
        assert not record.axes
        return record.refusal

    why = "the negative control failed: another last token of the prompt gets grade B, but should get -"
    assert refusal(engine(always_the_same)) == why
    assert refusal(refusing) == "refuses the model: no Llamas"
    said = "ValueError: n is 0, but must be at least 1"  # of a program, in another process
    for error in (ValueError(said), RuntimeError(said)):
        spec = EngineSpec("mine?n=0", Mock(side_effect=error))
        with pytest.raises(UsageError, match=f"engine 'mine\\?n=0' cannot be built: {said}"):
            measure_engine(lab, spec, RANDOM, [AXES["batch"]], seed=0)
    monkeypatch.setattr(measure, "with_noise", lambda answer, _seed: answer)
    assert "noise on the logits gets grade B, but should get E" in refusal(engine(exact))


def test_the_command_writes_a_record_and_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    arguments = ["--model", RANDOM, "--axis", "restart", "--axis", "chunking"]
    assert main(["invariance", "static", *arguments, "--output", str(tmp_path)]) == 0
    assert torch.get_num_threads() == threads
    record = INVARIANCE.read(tmp_path / "invariance-partial.json")
    grades = [(axis.axis, axis.grade) for each in record.engines for axis in each.axes]
    assert grades == [("restart", "S"), ("chunking", UNMEASURED)]
    page = (tmp_path / "invariance-partial.md").read_text(encoding="utf-8")
    assert page == invariance_page(record)
    assert "INCOMPLETE" in page
    assert "| `static` | S | (1) |" in capsys.readouterr().out


def test_the_committed_page_is_that_of_the_record() -> None:
    path = ROOT / "results" / "invariance.json"
    record = INVARIANCE.read(path)
    assert record.is_complete
    own = [e for e in record.engines if e.engine.startswith(("reference", "static", "ragged", "paged"))]
    assert own
    assert not any(each.refusal for each in own)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == invariance_page(record)
