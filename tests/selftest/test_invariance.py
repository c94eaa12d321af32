"""Invariance: each grade has an engine that reaches it, and a run whose control fails has no grades."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.__main__ import main
from batchproof.api import Capability, Completion, Engine, EngineConfig, EngineFactory, Request
from batchproof.errors import EngineHang, UnsupportedModelError, UsageError
from batchproof.findings.causes import Cause
from batchproof.findings.finding import Rule
from batchproof.places import ROOT
from batchproof.records.invariance import (
    INVARIANCE,
    UNMEASURED,
    AxisRecord,
    EngineRecord,
    InvarianceRecord,
)
from batchproof.records.provenance import made_now
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure
from batchproof.run.invariance import axes, control
from batchproof.run.invariance.axes import AXES
from batchproof.run.invariance.declared import declared_grades
from batchproof.run.invariance.holding import require_grade
from batchproof.run.invariance.measure import measure_axis, measure_engine
from batchproof.run.invariance.settings import NEIGHBOUR, Comparison, Contents
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, reference_factory, resolve_engine
from batchproof.run.trial import Trial
from batchproof_lab.invariance.invariance_page import invariance_page

RESULTS = ROOT / "results" / "invariance.json"
ULP, LARGE = 2.0**-23, 1e-3  # added to logits; the second is far beyond kappa E, and changes no token
LOGITS = frozenset({Capability.LOGITS})
Change = Callable[[Completion, Sequence[Request]], Completion]


class Changed:
    """Answers each prompt alone, and then alters the completions by the whole call."""

    capabilities = LOGITS

    def __init__(self, inner: Engine, change: Change) -> None:
        self._inner, self._change = inner, change

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._change(each, requests) for each in self._inner.generate(requests)]


def engine(change: Change) -> EngineFactory:
    return lambda model, config: Changed(reference_factory()(model, config), change)


def contents_of_others(requests: Sequence[Request]) -> int:
    others = [each for each in requests if each.request_id.startswith(NEIGHBOUR)]
    return sum(sum(each.prompt_token_ids) for each in others)


def moved(completion: Completion, seed: int, by: float) -> Completion:
    """Moves each logit by another amount, for all moved alike are the same function."""
    assert completion.logits is not None
    drawn = torch.rand(completion.logits.shape, generator=torch.Generator().manual_seed(seed))
    return replace(completion, logits=completion.logits + by * drawn * completion.logits.abs())


def exact(completion: Completion, _requests: Sequence[Request]) -> Completion:
    return completion


def noise_of_the_batch_size(completion: Completion, requests: Sequence[Request]) -> Completion:
    return moved(completion, len(requests), ULP * 2)


def noise_of_the_neighbours(completion: Completion, requests: Sequence[Request]) -> Completion:
    return moved(completion, contents_of_others(requests), ULP * 2)


def far_by_the_batch_size(completion: Completion, requests: Sequence[Request]) -> Completion:
    return moved(completion, len(requests), LARGE)


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
    lab: Laboratory, factory: EngineFactory, axis: str, model: str, has: frozenset[Capability] = LOGITS
) -> AxisRecord:
    trial = Trial(lab, EngineSpec("mine", factory), lab.oracle(model), has, Promise.P20)
    return measure_axis(trial, AXES[axis], seed=0)


RANDOM, HASH = "llama-random", "gpt2-hash"


@pytest.mark.parametrize(
    ("change", "axis", "model", "grade"),
    [
        (exact, "batch", RANDOM, "B"),
        (exact, "order", RANDOM, "B"),
        (exact, "neighbours", RANDOM, "S"),
        (exact, "restart", RANDOM, "S"),
        (noise_of_the_batch_size, "batch", RANDOM, "S"),
        (noise_of_the_batch_size, "neighbours", RANDOM, "S"),
        (noise_of_the_neighbours, "batch", RANDOM, "E"),
        (noise_of_the_neighbours, "neighbours", RANDOM, "E"),
        (far_by_the_batch_size, "batch", HASH, "T"),
        (far_by_the_batch_size, "batch", RANDOM, "-"),
        (token_of_the_neighbours, "neighbours", HASH, "-"),
        (token_of_the_neighbours, "batch", HASH, "-"),
    ],
)
def test_each_grade_is_reached(
    lab: Laboratory, change: Change, axis: str, model: str, grade: str
) -> None:
    record = along(lab, engine(change), axis, model)
    assert (record.grade, record.reason) == (grade, "")
    assert record.num_comparisons == (5 if record.worst == 0 and grade != "-" else 4)
    assert record.evidence == ("by construction" if axis == "restart" else "not shown")


def test_without_logits_tokens_are_the_best_grade(lab: Laboratory) -> None:
    record = along(lab, engine(without_logits), "order", HASH, frozenset())
    assert (record.grade, record.worst) == ("T", None)
    record = along(lab, engine(without_logits), "order", RANDOM, frozenset())
    assert "near-ties" in record.reason


@pytest.mark.parametrize(
    ("name", "axis", "reason"),
    [
        ("reference", "chunking", "the engine has no chunked_prefill"),
        ("static", "arrival", "show it in 0 of 4 comparisons: joins running decodes"),
    ],
)
def test_what_an_engine_cannot_show_is_not_measured(
    lab: Laboratory, name: str, axis: str, reason: str
) -> None:
    spec = resolve_engine(name)
    capabilities = lab.capabilities(spec, lab.subject(RANDOM))
    record = along(lab, spec.factory, axis, RANDOM, capabilities)
    assert (record.grade, record.has_failed) == (UNMEASURED, False)
    assert reason in record.reason


@pytest.mark.parametrize(
    "axis", ["batch", "arrival", "chunking", "prefix", "prefill", "preemption", "speculation"]
)
def test_the_traces_of_paged_show_every_event(lab: Laboratory, axis: str) -> None:
    spec = resolve_engine("paged")
    capabilities = lab.capabilities(spec, lab.subject(RANDOM))
    record = along(lab, spec.factory, axis, RANDOM, capabilities)
    assert record.evidence == "shown", record.reason
    assert record.grade in ("B", "S", "E" if axis == "speculation" else "S")


def test_an_engine_that_raises_is_not_measured(lab: Laboratory) -> None:
    record = along(lab, engine(raising), "batch", RANDOM)
    assert (record.grade, record.reason) == (UNMEASURED, "the engine raised ValueError: out of luck")
    assert record.has_failed


def test_an_axis_that_ran_out_of_time_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(_contents: Contents, _kept: Request) -> Comparison:
        raise EngineHang("generate did not return within 60 s")

    monkeypatch.setitem(AXES, "restart", replace(AXES["restart"], compare=late))
    arguments = ["--model", RANDOM, "--axis", "restart", "--output", str(tmp_path)]
    assert main(["invariance", "static", *arguments]) == 1
    assert "1. restart: time limit: generate did not return within 60 s" in capsys.readouterr().out


def held(
    lab: Laboratory, change: Change, declared: object, model: str, has: frozenset[Capability]
) -> Trial:
    """Holds the engine to what it declares. Returns the trial, which counts."""

    def factory(model: PreTrainedModel, config: EngineConfig) -> Engine:
        built = engine(change)(model, config)
        built.invariance = declared  # type: ignore[attr-defined]
        return built

    trial = Trial(lab, EngineSpec("mine", factory), lab.oracle(model), has, Promise.P20)
    for axis, grade in declared_grades(trial).items():
        require_grade(trial, axis, grade)
    return trial


@pytest.mark.parametrize(
    ("change", "declared", "model"),
    [
        (exact, {"batch": "B", "neighbours": "S"}, RANDOM),
        (noise_of_the_batch_size, {"batch": "S", "neighbours": "S"}, RANDOM),
        (noise_of_the_neighbours, {"batch": "E", "neighbours": "E"}, RANDOM),
        (far_by_the_batch_size, {"batch": "T"}, HASH),
    ],
)
def test_who_keeps_what_it_declares_is_not_blamed(
    lab: Laboratory, change: Change, declared: dict[str, str], model: str
) -> None:
    trial = held(lab, change, declared, model, LOGITS)
    assert trial.ledger.num_requests == 2 * len(declared)


@pytest.mark.parametrize(
    ("change", "declared", "model", "got"),
    [
        (noise_of_the_batch_size, {"neighbours": "S", "batch": "B"}, RANDOM, "S"),
        (noise_of_the_neighbours, {"batch": "S"}, RANDOM, "E"),
        (far_by_the_batch_size, {"batch": "E"}, HASH, "T"),
        (token_of_the_neighbours, {"neighbours": "T"}, HASH, "-"),
    ],
)
def test_who_does_not_keep_it_is_caught(
    lab: Laboratory, change: Change, declared: dict[str, str], model: str, got: str
) -> None:
    with pytest.raises(ConformanceFailure) as caught:
        held(lab, change, declared, model, LOGITS)
    failure = caught.value.failure
    axis, letter = [*declared.items()][-1]
    assert (failure.rule, failure.promise, failure.finding.cause) == (
        *(Rule.INVARIANCE, Promise.P20, Cause.SHAPES),
    )
    words = f"the grade along {axis} is {got}, but the engine declares {letter}"
    assert words in str(caught.value)
    assert failure.scene.other


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({}, "invariance is {}, but must be a mapping of axes to grades"),
        ("B", "invariance is 'B', but must be a mapping"),
        ({"bach": "B"}, "has the axis 'bach', which is none of batch, neighbours, "),
        ({"batch": "A"}, "is 'A' along batch, but must be one of B, S, E, T"),
        ({"neighbours": "B"}, "is 'B' along neighbours, but must be one of S, E, T"),
        ({"chunking": "B"}, "declares invariance along chunking, which needs chunked_prefill"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(lab: Laboratory, declared: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        held(lab, exact, declared, RANDOM, LOGITS)
    assert words in str(caught.value)


def test_without_logits_only_tokens_can_be_declared(lab: Laboratory) -> None:
    with pytest.raises(UsageError, match="must be one of T, for want of logits"):
        held(lab, without_logits, {"batch": "E"}, RANDOM, frozenset())
    assert held(lab, without_logits, {"batch": "T"}, RANDOM, frozenset()).ledger.num_requests == 0
    assert held(lab, without_logits, {"batch": "T"}, HASH, frozenset()).ledger.num_requests == 2


def refusal(lab: Laboratory, factory: EngineFactory) -> str:
    record = measure_engine(lab, EngineSpec(repr(factory), factory), RANDOM, [AXES["batch"]], seed=0)
    assert not record.axes
    return record.refusal


def test_an_engine_that_does_not_read_its_prompt_gets_no_grades(lab: Laboratory) -> None:
    why = "the negative control failed: another last token of the prompt gets grade B, but should get -"
    assert refusal(lab, engine(always_the_same)) == why


def test_a_comparison_that_does_not_see_noise_gives_no_grades(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "with_noise", lambda answer, _seed: answer)
    assert "noise on the logits gets grade B, but should get E" in refusal(lab, engine(exact))


def test_a_refused_model_has_no_grades(lab: Laboratory) -> None:
    def refusing(_model: object, _config: EngineConfig) -> Engine:
        raise UnsupportedModelError("no Llamas")

    assert refusal(lab, refusing) == "refuses the model: no Llamas"


def test_the_command_writes_a_record_and_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    arguments = ["--model", RANDOM, "--axis", "restart", "--axis", "chunking"]
    assert main(["invariance", "static", *arguments, "--output", str(tmp_path)]) == 0
    assert torch.get_num_threads() == threads
    record = INVARIANCE.read(tmp_path / "invariance-partial.json")
    (found,) = record.engines
    assert [(each.axis, each.grade) for each in found.axes] == [
        ("restart", "S"),
        ("chunking", UNMEASURED),
    ]
    page = (tmp_path / "invariance-partial.md").read_text(encoding="utf-8")
    assert page == invariance_page(record)
    assert "INCOMPLETE" in page
    assert "| `static` | S | (1) |" in capsys.readouterr().out


def test_an_engine_without_grades_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "with_noise", lambda answer, _seed: answer)
    arguments = ["--model", RANDOM, "--axis", "restart", "--output", str(tmp_path)]
    assert main(["invariance", "static", *arguments]) == 1
    out = capsys.readouterr().out
    assert "| `static` | (1) |" in out
    assert "1. `static`: the negative control failed: an ulp of noise" in out


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    axis = AxisRecord("batch", "E", "", "not shown", 0.25, 4, 32)
    missing = AxisRecord("prefix", UNMEASURED, "the engine has no prefix_caching")
    engines = (
        EngineRecord("mine", RANDOM, "float32", 8.0, 1e-5, axes=(axis, missing)),
        EngineRecord("other", RANDOM, "float32", refusal="refuses the model: no Llamas"),
    )
    record = InvarianceRecord(made_now("made by hand"), True, "cpu", 0, engines)
    INVARIANCE.write(record, tmp_path / "x.json")
    assert INVARIANCE.read(tmp_path / "x.json") == record
    page = invariance_page(record)
    assert "| `mine` | E? | (1) |" in page
    assert "| `mine` | 0.25 |  |" in page
    assert "| `other` | (2) | (2) |" in page
    assert "2. `other`: refuses the model: no Llamas" in page


def test_the_committed_page_is_that_of_the_record() -> None:
    record = INVARIANCE.read(RESULTS)
    assert record.is_complete
    own = [
        each
        for each in record.engines
        if each.engine.startswith(("reference", "static", "ragged", "paged"))
    ]
    assert own
    assert not any(each.refusal for each in own)
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == invariance_page(record)
