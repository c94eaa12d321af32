"""Copies of weights for faster kernels: which are made, that they are used and kept, and that the
model is not touched."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.checks.environment import model_of
from batchproof.models.catalogue import load_model
from batchproof_paged import native, packing, paged
from batchproof_paged.packing import MOST_ROWS, NATIVE, ONEDNN, PackedLinears

SLOTS = 8
KERNELS = [ONEDNN, *([NATIVE] if native.works() else [])]
ASKED = [Request(f"r{i}", tuple(range(1, 4 + i)), 3 + 4 * i) for i in range(SLOTS)]


@pytest.fixture
def model() -> PreTrainedModel:
    """A model of its own, large enough to be packed."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 2048}
    config = LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.1)
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def test_many_rows_are_multiplied_by_the_layers_and_copies_are_kept_for_the_next_engine(
    model: PreTrainedModel,
) -> None:
    first, second = (PackedLinears(model, None) for _ in range(2))
    assert first.selected(SLOTS) == second.selected(MOST_ROWS) != ()
    assert first.selected(MOST_ROWS + 1) == ()
    small = load_model("llama-random", torch.device("cpu"), torch.float32).model
    assert not PackedLinears(small, None)._copies, "its weights stay in a cache"


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_are_those_of_the_kernel_and_the_callers_model_is_untouched(
    model: PreTrainedModel, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the weights are packed changes no token; that they are is seen by spoiling the copies."""
    before, modules = copy.deepcopy(model_of(model)), [*model.modules()]
    attributes = [set(vars(each)) for each in modules]
    plain = paged(model, EngineConfig(), pack=False).generate(ASKED)
    monkeypatch.setattr(packing, "kernel_for", lambda _: kernel)
    engine = paged(model, EngineConfig(), native=False)
    assert engine.generate(ASKED) == plain
    weights = engine._runner._pass._trace._linears
    num_linear = sum(type(each) is nn.Linear for each in model.modules())
    assert len(weights.selected(SLOTS)) == num_linear
    for each in weights._copies.values():
        each.weight = packing.pack(kernel, torch.zeros_like(each.layer.weight))
    assert engine.generate(ASKED) != plain
    assert model_of(model) == before
    assert [*model.modules()] == modules
    assert [set(vars(each)) for each in modules] == attributes
