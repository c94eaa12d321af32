"""Events that must leave the paged engine in a working state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.api import (
    EngineConfig,
    FinishReason,
    Request,
    SteppingEngine,
)
from batchproof.errors import ConfigError
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine
from batchproof_paged import native, packing, paged

KERNELS = ["onednn", *(["native"] if native.works() else [])]


@pytest.fixture
def model() -> PreTrainedModel:
    return load_model("llama-random", torch.device("cpu"), torch.float32).model


@pytest.mark.parametrize(
    "options", [{}, {"backend": "blocks"}, {"backend": "blocks", "graphs": True}], ids=str
)
def test_a_row_of_nan_leaves_nothing_behind(model: PreTrainedModel, options: dict[str, Any]) -> None:
    """Cells after a sequence's end are read with weight zero, which does not cancel a NaN."""
    model = copy.deepcopy(model)
    model.get_input_embeddings().weight.data[7] = float("inf")
    good = [Request("g", (20, 21), 4), Request("h", (30, 31, 32, 33, 34, 35), 4)]
    bad = [Request("bad", (7,) * 12, 1), Request("worse", (7,) * 9, 3)]
    for is_cached in (False, True):
        config = EngineConfig(max_num_seqs=2, num_blocks=8, block_size=4, prefix_caching=is_cached)
        engine = paged(model, config, **options)
        before = engine.generate(good)
        engine.generate(bad)
        assert engine.generate(good) == before
        beside = engine.generate([good[0], bad[1], good[1], bad[0]])
        assert [beside[0], beside[2]] == before


def in_place(weight: torch.Tensor) -> None:
    weight.copy_(weight.flip(0))


def through_data(weight: torch.Tensor) -> None:
    weight.data.copy_(weight.data.flip(0))


def in_another_place(weight: torch.Tensor) -> None:
    weight.data = weight.data.flip(0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("change", [in_place, through_data, in_another_place])
def test_packed_weights_follow_the_model(
    model: PreTrainedModel,
    kernel: str,
    is_tied: bool,
    change: Callable[[torch.Tensor], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "kernel_for", lambda _: kernel)
    monkeypatch.setitem(packing.LEAST_ROWS, kernel, 1)
    model = copy.deepcopy(model)
    if is_tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    asked = [Request("a", (1, 2, 3), 6)]
    engine = paged(model, EngineConfig(max_num_seqs=1), pack=True)
    before = engine.generate(asked)
    for parameter in model.parameters():
        change(parameter)
    after = engine.generate(asked)
    assert after == resolve_engine("reference").factory(model, EngineConfig()).generate(asked) != before


def test_weights_that_were_equal_may_change_apart(model: PreTrainedModel) -> None:
    """Nothing that was derived from one of them may stand for the other."""
    model = copy.deepcopy(model)
    norms = [each for each in model.parameters() if each.dim() == 1]
    for norm in norms:
        norm.fill_(1.0)
    asked = [Request("a", (1, 2, 3), 6)]
    paged(model, EngineConfig()).generate(asked)
    for index, norm in enumerate(norms):
        norm.copy_(torch.linspace(0.2 + index, 2.0, len(norm)))
    changed = paged(model, EngineConfig()).generate(asked)
    assert changed == resolve_engine("reference").factory(model, EngineConfig()).generate(asked)


def test_a_step_sees_weights_changed_between_steps(model: PreTrainedModel) -> None:
    model = copy.deepcopy(model)
    answers = []
    for pack in (False, True):
        engine = paged(model, EngineConfig(max_num_seqs=1), pack=pack)
        engine.add(Request("a", (1, 2, 3), 6))
        tokens = [event.token_id for event in engine.step() + engine.step()]
        for parameter in model.parameters():
            in_place(parameter)
        while engine.has_unfinished:
            tokens += [event.token_id for event in engine.step()]
        for parameter in model.parameters():
            in_place(parameter)  # flipped again
        answers.append(tokens)
    assert all(each == answers[0] for each in answers)


def test_a_call_that_raises_leaves_the_engine_free(model: PreTrainedModel) -> None:
    engine = paged(model, EngineConfig())
    good = Request("good", (1, 2), 2)
    with pytest.raises(TypeError):
        engine.generate([good, Request("bad", None, 2)])  # type: ignore[arg-type]
    (answer,) = engine.generate([good])
    assert len(answer.token_ids) == 2


@pytest.mark.parametrize("options", [{}, {"feed": "separate"}], ids=str)
def test_autocast_is_refused_and_costs_no_request(
    model: PreTrainedModel, options: dict[str, Any]
) -> None:
    asked = Request("a", (1, 2, 3), 6)
    engine = paged(model, EngineConfig(), **options)
    (expected,) = engine.generate([asked])
    engine.add(asked)
    tokens = [event.token_id for event in engine.step()]
    engine.add(Request("bad", (), 1))
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ConfigError, match=r"torch\.autocast is on, .*: build and run it outside"):
            engine.step()
        with pytest.raises(ConfigError, match=r"torch\.autocast is on"):
            paged(model, EngineConfig(), **options)
    while engine.has_unfinished:
        tokens += [event.token_id for event in engine.step() if event.request_id == "a"]
    assert tuple(tokens) == expected.token_ids


def test_an_id_is_live_until_its_refusal_is_delivered_and_free_after_an_abort(
    model: PreTrainedModel,
) -> None:
    engine = paged(model, EngineConfig())
    assert isinstance(engine, SteppingEngine)
    engine.add(Request("a", (), 1))
    with pytest.raises(ValueError, match="is live already"):
        engine.add(Request("a", (1,), 1))
    (refusal,) = engine.step()
    assert refusal.finish_reason is FinishReason.ERROR
    engine.add(Request("a", (1,), 3))
    engine.abort("a")
    engine.add(Request("a", (1,), 1))
    (event,) = engine.step()
    assert event.finish_reason is FinishReason.LENGTH
