"""Sibling layers as one product: the same numbers, from copies that follow the model's weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from batchproof_paged.fused_linears import FusedLinears

PLENTY = 1 << 30  # bytes
Change = Callable[[PreTrainedModel], object]


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 24, "vocab_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, initializer_range=0.3)).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)  # transformers begins with zeros
    return model.requires_grad_(False)


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.arange(5)[None]).logits
    return found


def num_parts(model: PreTrainedModel) -> int:
    """Returns how many layers are parts of common products now."""
    return sum("forward" in each.__dict__ for each in model.modules())


def k_proj(model: PreTrainedModel) -> nn.Module:
    found: nn.Module = model.model.layers[0].self_attn.k_proj
    return found


@pytest.mark.parametrize(("free_bytes", "num_fused"), [(PLENTY, 2 * (3 + 2)), (1 << 10, 0)])
def test_parts_of_a_common_product_compute_what_the_layers_do(
    model: PreTrainedModel, free_bytes: int, num_fused: int
) -> None:
    right = logits(model)
    with FusedLinears(model, free_bytes).in_place():
        assert num_parts(model) == num_fused
        torch.testing.assert_close(logits(model), right)
    assert num_parts(model) == 0


CHANGES: dict[str, tuple[Change, bool]] = {
    "in place": (lambda model: k_proj(model).weight.neg_(), False),
    "of a bias": (lambda model: k_proj(model).bias.mul_(-2), False),
    "another weight": (
        lambda model: setattr(k_proj(model), "weight", nn.Parameter(-k_proj(model).weight)),
        False,
    ),
    "through data": (lambda model: k_proj(model).weight.data.neg_(), True),
}


@pytest.mark.parametrize(("change", "is_thorough"), CHANGES.values(), ids=CHANGES)
def test_copies_follow_the_weights(model: PreTrainedModel, change: Change, is_thorough: bool) -> None:
    fused, before = FusedLinears(model, PLENTY), logits(model)
    fused.follow(is_thorough=True)
    change(model)
    fused.follow(is_thorough)
    right = logits(model)
    assert not torch.allclose(right, before)
    with fused.in_place():
        torch.testing.assert_close(logits(model), right)


OTHERS: dict[str, Change] = {
    "another layer": lambda model: setattr(
        model.model.layers[0].self_attn, "k_proj", nn.Linear(32, 16)
    ),
    "a hook": lambda model: k_proj(model).register_forward_hook(lambda _, _rows, result: -result),
    "a normed weight": lambda model: nn.utils.parametrizations.weight_norm(k_proj(model)),
    "another dtype": lambda model: model.double(),
}


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_layers_that_are_others_now_are_not_passed_over(
    model: PreTrainedModel, change: Change, is_new: bool
) -> None:
    fused = FusedLinears(model, PLENTY)
    change(model)
    there, right = k_proj(model), logits(model)
    fused = FusedLinears(model, PLENTY) if is_new else fused
    fused.follow(is_thorough=True)
    with fused.in_place():
        torch.testing.assert_close(logits(model), right)
    assert k_proj(model) is there
