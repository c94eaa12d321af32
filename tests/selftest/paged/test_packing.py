"""Copies of weights for faster kernels: which are made, that they are used and kept, and that the
model is not touched."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.checks.environment import model_of
from batchproof.models.catalogue import load_model
from batchproof_engines.paged import packing, packing_choice, paged
from batchproof_engines.paged.packing import PackedLinears
from batchproof_engines.paged.packing_choice import CLASSES, FULL, MKL, ONEDNN, PLAIN, chosen
from batchproof_engines.paged.packing_memory import Memory

SLOTS = 8
ASKED = [Request(f"r{i}", tuple(range(1, 4 + i)), 3 + 4 * i) for i in range(SLOTS)]


@pytest.fixture
def model() -> PreTrainedModel:
    """A model of its own, large enough to be measured."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 2048}
    config = LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.1)
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder for what was measured; returns the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packing_choice, "_MEMORY", Memory())
    return tmp_path / "cache" / "batchproof" / "linears.json"


def of_kernel(kernel: str, gains: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the clock: each kernel gains so much. Returns the measured row counts of `kernel`."""
    measured = list[int]()

    def gain(_: list[nn.Linear], name: str, num_rows: int) -> float:
        if name == kernel:
            measured.append(num_rows)
        return gains[name]

    monkeypatch.setattr(packing_choice, "_gain", gain)
    monkeypatch.setattr(packing_choice, "_MEMORY", Memory())
    return measured


@pytest.mark.parametrize(
    ("gains", "kernel", "when_full"),
    [
        ({ONEDNN: 1.05, MKL: 1.05}, PLAIN, PLAIN),
        ({ONEDNN: 1.5, MKL: 2.0}, ONEDNN, ONEDNN),  # one copy of a weight is enough
        ({ONEDNN: 0.5, MKL: 1.5}, PLAIN, MKL),
    ],
)
def test_a_kernel_is_chosen_that_gains_clearly(
    gains: dict[str, float], kernel: str, when_full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kernel(MKL, gains, monkeypatch)
    layer = nn.Linear(16, 16)
    expected = {**dict.fromkeys(CLASSES, kernel), FULL: when_full}
    assert chosen([layer], SLOTS) == {layer: expected}


def test_a_choice_is_kept_for_the_next_engine(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = of_kernel(ONEDNN, {ONEDNN: 1.5, MKL: 1.0}, monkeypatch)
    first = paged(model, EngineConfig())
    assert set(measured) == set(CLASSES)
    measured.clear()
    second = paged(model, EngineConfig())
    assert not measured
    copies = [PackedLinears(model, "auto", SLOTS)._copies.values() for _ in range(2)]
    assert [*copies[0]] == [*copies[1]], "the copies are kept, too"
    assert first.generate(ASKED) == second.generate(ASKED)


def test_a_choice_is_kept_for_the_next_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = of_kernel(ONEDNN, {ONEDNN: 1.5, MKL: 1.0}, monkeypatch)
    choices = []
    for _ in range(2):
        monkeypatch.setattr(packing_choice, "_MEMORY", Memory())  # as in a process of its own
        choices.append([*chosen([nn.Linear(16, 16)], SLOTS).values()])
    assert choices[0] == choices[1]
    assert len(measured) == len(CLASSES)
    ((machine, answers),) = json.loads(cache.read_text()).items()
    assert torch.__version__ in machine
    assert answers["Linear 16x16 torch.float32, threads=1, onednn, 4 rows"] is True


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', None])
def test_a_memory_that_cannot_be_read_is_measured_anew(
    text: str | None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is None:
        cache.mkdir(parents=True)  # where the file should be, so that it cannot be written either
    else:
        cache.parent.mkdir(parents=True)
        cache.write_text(text)
    measured = of_kernel(ONEDNN, {ONEDNN: 1.5, MKL: 1.0}, monkeypatch)
    chosen([nn.Linear(16, 16)], SLOTS)
    assert len(measured) == len(CLASSES)
    assert [*cache.parent.iterdir()] == [cache], "no draft is left"


def test_a_small_model_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = of_kernel(ONEDNN, {ONEDNN: 1.5, MKL: 1.5}, monkeypatch)
    paged(load_model("llama-random", torch.device("cpu"), torch.float32).model, EngineConfig())
    assert not measured


def test_a_model_that_is_being_trained_is_traced_as_well(model: PreTrainedModel) -> None:
    plain = paged(model, EngineConfig(), linears=PLAIN).generate(ASKED)
    engine = paged(model.requires_grad_(True), EngineConfig(), linears=ONEDNN)
    assert engine._runner._pass._trace.is_traced
    assert engine.generate(ASKED) == plain


@pytest.mark.parametrize("linears", ["auto", ONEDNN, MKL])
def test_the_callers_model_is_untouched(model: PreTrainedModel, linears: str) -> None:
    before, modules = copy.deepcopy(model_of(model)), [*model.modules()]
    attributes = [set(vars(each)) for each in modules]
    random = torch.random.get_rng_state()
    paged(model, EngineConfig(), linears=linears).generate(ASKED)
    assert model_of(model) == before
    assert [*model.modules()] == modules
    assert [set(vars(each)) for each in modules] == attributes
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("kernel", [PLAIN, ONEDNN, MKL])
def test_steps_of_decodes_alone_are_filled_up_and_only_for_mkl(
    model: PreTrainedModel, kernel: str
) -> None:
    engine = paged(model, EngineConfig(), linears=kernel)
    run, num_rows = engine._runner._pass._trace, list[int]()

    def recording(tokens: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        num_rows.append(tokens.shape[1])
        return forward(tokens, *others)

    forward, run._forward, run._trace = run._forward, recording, lambda _: None
    engine.generate(ASKED)
    fed = [[row.query_len for row in record.rows] for record in engine.trace]
    assert max(map(sum, fed)) > SLOTS > min(map(sum, fed))
    is_filled = [kernel == MKL and set(each) == {1} and 2 * len(each) > SLOTS for each in fed]
    assert num_rows == [
        SLOTS if filled else sum(each) for filled, each in zip(is_filled, fed, strict=True)
    ]


@pytest.mark.parametrize("kernel", [ONEDNN, MKL])
def test_products_are_those_of_the_kernel(model: PreTrainedModel, kernel: str) -> None:
    """That a step is filled up to all slots, and that its weights are packed, changes no token; that
    they are is seen by spoiling the copies."""
    plain = paged(model, EngineConfig(), linears=PLAIN).generate(ASKED)
    engine = paged(model, EngineConfig(), linears=kernel)
    assert engine.generate(ASKED) == plain
    weights = engine._runner._pass._trace._linears
    num_linear = sum(type(each) is nn.Linear for each in model.modules())
    assert len(weights.selected(SLOTS, SLOTS)) == num_linear
    for each in weights._copies.values():
        each.weight = packing.pack(kernel, torch.zeros_like(each.layer.weight), each.slots)
    assert engine.generate(ASKED) != plain
