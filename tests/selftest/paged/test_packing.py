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
from batchproof_paged import native, packing, packing_choice, paged
from batchproof_paged.packing import PackedLinears
from batchproof_paged.packing_choice import CLASSES, NATIVE, ONEDNN, PLAIN, chosen
from batchproof_paged.packing_memory import Memory

SLOTS = 8
KERNELS = [ONEDNN, *([NATIVE] if native.works() else [])]
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


def measuring(gains: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replaces the clock: there are these kernels, each of which gains so much. Returns what is
    measured."""
    measured = list[tuple[str, int]]()

    def gain(_: list[nn.Linear], kernel: str, num_rows: int) -> float:
        measured.append((kernel, num_rows))
        return gains[kernel]

    monkeypatch.setattr(packing_choice, "_measured", gain)
    monkeypatch.setattr(packing_choice, "works", lambda kernel, _: kernel in gains)
    monkeypatch.setattr(native, "identity", lambda: NATIVE)
    monkeypatch.setattr(packing_choice, "_MEMORY", Memory())
    return measured


@pytest.mark.parametrize(
    ("gains", "kernel"),
    [
        ({}, PLAIN),
        ({ONEDNN: 1.05, NATIVE: 1.05}, PLAIN),
        ({ONEDNN: 1.5, NATIVE: 2.0}, NATIVE),  # one copy of a weight is enough
        ({ONEDNN: 1.5, NATIVE: 0.5}, ONEDNN),
    ],
)
def test_a_kernel_is_chosen_that_gains_clearly(
    gains: dict[str, float], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measuring(gains, monkeypatch)
    layer = nn.Linear(16, 16)
    expected = {} if kernel == PLAIN else dict.fromkeys(CLASSES, kernel)
    assert chosen([layer]) == {layer: expected}
    assert measured == [(each, rows) for each in gains for rows in CLASSES]


def test_a_choice_is_kept_for_the_next_engine(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measuring({ONEDNN: 1.5}, monkeypatch)
    first = paged(model, EngineConfig())
    assert {rows for _, rows in measured} == {*CLASSES}
    measured.clear()
    second = paged(model, EngineConfig())
    assert not measured
    copies = [PackedLinears(model, "auto")._copies.values() for _ in range(2)]
    assert [*copies[0]] == [*copies[1]], "the copies are kept, too"
    assert first.generate(ASKED) == second.generate(ASKED)


def test_a_choice_is_kept_for_the_next_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring({ONEDNN: 1.5}, monkeypatch)
    choices = []
    for _ in range(2):
        monkeypatch.setattr(packing_choice, "_MEMORY", Memory())  # as in a process of its own
        choices.append([*chosen([nn.Linear(16, 16)]).values()])
    assert choices[0] == choices[1]
    assert len(measured) == len(CLASSES)
    ((machine, answers),) = json.loads(cache.read_text()).items()
    assert torch.__version__ in machine
    assert answers["Linear 16x16 torch.float32, threads=1, onednn, 4 rows"] == 1.5


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', None])
def test_a_memory_that_cannot_be_read_is_measured_anew(
    text: str | None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is None:
        cache.mkdir(parents=True)  # where the file should be, so that it cannot be written either
    else:
        cache.parent.mkdir(parents=True)
        cache.write_text(text)
    measured = measuring({ONEDNN: 1.5}, monkeypatch)
    chosen([nn.Linear(16, 16)])
    assert len(measured) == len(CLASSES)
    assert [*cache.parent.iterdir()] == [cache], "no draft is left"


def test_a_small_model_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring({ONEDNN: 1.5}, monkeypatch)
    paged(load_model("llama-random", torch.device("cpu"), torch.float32).model, EngineConfig())
    assert not measured


def test_a_model_that_is_being_trained_is_traced_as_well(model: PreTrainedModel) -> None:
    plain = paged(model, EngineConfig(), linears=PLAIN).generate(ASKED)
    engine = paged(model.requires_grad_(True), EngineConfig(), linears=ONEDNN)
    assert engine._runner._pass._trace.is_traced
    assert engine.generate(ASKED) == plain


@pytest.mark.parametrize("linears", ["auto", *KERNELS])
def test_the_callers_model_is_untouched(model: PreTrainedModel, linears: str) -> None:
    before, modules = copy.deepcopy(model_of(model)), [*model.modules()]
    attributes = [set(vars(each)) for each in modules]
    random = torch.random.get_rng_state()
    paged(model, EngineConfig(), linears=linears).generate(ASKED)
    assert model_of(model) == before
    assert [*model.modules()] == modules
    assert [set(vars(each)) for each in modules] == attributes
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_are_those_of_the_kernel(model: PreTrainedModel, kernel: str) -> None:
    """That the weights are packed changes no token; that they are is seen by spoiling the copies."""
    plain = paged(model, EngineConfig(), linears=PLAIN).generate(ASKED)
    engine = paged(model, EngineConfig(), linears=kernel)
    assert engine.generate(ASKED) == plain
    weights = engine._runner._pass._trace._linears
    num_linear = sum(type(each) is nn.Linear for each in model.modules())
    assert len(weights.selected(SLOTS, SLOTS)) == num_linear
    for each in weights._copies.values():
        each.weight = packing.pack(kernel, torch.zeros_like(each.layer.weight))
    assert engine.generate(ASKED) != plain
