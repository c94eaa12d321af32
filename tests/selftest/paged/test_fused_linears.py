"""Sibling layers as one product: the same numbers, from copies that follow the model's weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from batchproof_paged.fused_linears import FusedLinears

PLENTY = 1 << 30  # bytes
TOKENS = torch.arange(5)[None]


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 24, "vocab_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, initializer_range=0.3)).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)  # transformers begins with zeros
    return model


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(TOKENS).logits
    return found


def num_parts(model: PreTrainedModel) -> int:
    """Returns how many layers are parts of common products now."""
    return sum("forward" in each.__dict__ for each in model.modules())


def test_parts_of_a_common_product_compute_what_the_layers_do(model: PreTrainedModel) -> None:
    right = logits(model)
    with FusedLinears(model, PLENTY):
        assert num_parts(model) == 2 * (3 + 2)
        torch.testing.assert_close(logits(model), right)
    assert num_parts(model) == 0


def changed_in_place(model: PreTrainedModel) -> None:
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        attention.k_proj.bias.mul_(-2)
        attention.v_proj.weight.neg_()


def with_another_weight(model: PreTrainedModel) -> None:
    mlp = model.model.layers[1].mlp
    mlp.up_proj.weight = nn.Parameter(-mlp.up_proj.weight.detach())


def changed_through_data(model: PreTrainedModel) -> None:
    model.model.layers[1].self_attn.q_proj.weight.data.neg_()


@pytest.mark.parametrize(
    ("change", "is_anew"),
    [(changed_in_place, False), (with_another_weight, False), (changed_through_data, True)],
)
def test_copies_follow_the_weights(
    model: PreTrainedModel, change: Callable[[PreTrainedModel], None], is_anew: bool
) -> None:
    fused, before = FusedLinears(model, PLENTY), logits(model)
    fused.follow(is_anew=True)
    change(model)
    fused.follow(is_anew)
    assert not torch.allclose(logits(model), before)
    with fused:
        ours = logits(model)
    torch.testing.assert_close(ours, logits(model))


def with_another_layer(model: PreTrainedModel) -> None:
    model.model.layers[0].self_attn.k_proj = nn.Linear(32, 16)


def with_a_hook(model: PreTrainedModel) -> None:
    hook = model.model.layers[0].self_attn.k_proj.register_forward_hook
    hook(lambda _module, _rows, result: -result)


def converted(model: PreTrainedModel) -> None:
    model.double()


@pytest.mark.parametrize("change", [with_another_layer, with_a_hook, converted])
@pytest.mark.parametrize("is_new", [False, True])
def test_layers_that_are_others_now_are_not_passed_over(
    model: PreTrainedModel, change: Callable[[PreTrainedModel], None], is_new: bool
) -> None:
    fused = FusedLinears(model, PLENTY)
    change(model)
    there, right = model.model.layers[0].self_attn.k_proj, logits(model)
    with FusedLinears(model, PLENTY) if is_new else fused:
        torch.testing.assert_close(logits(model), right)
    assert model.model.layers[0].self_attn.k_proj is there


def test_nothing_is_copied_where_memory_is_short(model: PreTrainedModel) -> None:
    with FusedLinears(model, free_bytes=1 << 10):
        assert num_parts(model) == 0
