"""Sibling layers as one product: the same numbers, from copies that follow the model's weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from batchproof_paged.fused_linears import FusedLinears

Change = Callable[[PreTrainedModel, nn.Linear], object]


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


@pytest.mark.parametrize(("free_bytes", "num_parts"), [(1 << 30, 2 * (3 + 2)), (1 << 10, 0)])
def test_parts_of_a_common_product_compute_what_the_layers_do(
    model: PreTrainedModel, free_bytes: int, num_parts: int
) -> None:
    right = logits(model)
    with FusedLinears(model, free_bytes).in_place():
        assert sum("forward" in each.__dict__ for each in model.modules()) == num_parts
        torch.testing.assert_close(logits(model), right)
    assert not any("forward" in each.__dict__ for each in model.modules())


def weight_norm(_model: PreTrainedModel, layer: nn.Linear) -> None:
    nn.utils.parametrizations.weight_norm(layer)
    layer.parametrizations.weight.original1.neg_()


# name: the change of a layer, and whether it remains a part of a product
CHANGES: dict[str, tuple[Change, bool]] = {
    "in place": (lambda _, layer: layer.weight.neg_(), True),
    "of a bias": (lambda _, layer: layer.bias.mul_(-2), True),
    "through data": (lambda _, layer: layer.weight.data.neg_(), True),
    "another weight": (lambda _, each: setattr(each, "weight", nn.Parameter(-each.weight)), True),
    "a hook": (lambda _, layer: layer.register_forward_hook(lambda _, _rows, keys: -keys), False),
    "weight norm": (weight_norm, False),
    "another dtype": (lambda model, _: model.double().lm_head.weight.neg_(), False),
}


@pytest.mark.parametrize(("change", "is_part"), CHANGES.values(), ids=CHANGES)
def test_changed_weights_are_followed_and_changed_layers_left_alone(
    model: PreTrainedModel, change: Change, is_part: bool, request: pytest.FixtureRequest
) -> None:
    layer, before = model.model.layers[0].self_attn.k_proj, logits(model)
    fused = FusedLinears(model, 1 << 30)
    fused.follow(is_thorough=True)
    change(model, layer)
    fused.follow(is_thorough="through data" in request.node.name)
    right = logits(model)
    assert not torch.allclose(right, before.to(right.dtype))
    with fused.in_place():
        assert ("forward" in layer.__dict__) == is_part
        torch.testing.assert_close(logits(model), right)
    with FusedLinears(model, 1 << 30).in_place():
        torch.testing.assert_close(logits(model), right)
