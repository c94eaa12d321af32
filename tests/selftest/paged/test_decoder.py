"""Decoders that run as one native call: which do, that they compute what the model does, and that no
row depends on another, to the bit."""

import random
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from batchproof.api import EngineConfig, Request
from batchproof.run.devices import num_threads
from batchproof_paged import native, paged

pytestmark = pytest.mark.skipif(not native.works(), reason="there are no native kernels")

FAMILIES: dict[str, tuple[Any, Any, dict[str, object]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 9, "hidden_act": "relu"}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"hidden_act": "gelu_pytorch_tanh"}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {}),
}
CROWDED = EngineConfig(
    max_num_seqs=5, max_num_batched_tokens=29, block_size=4, num_blocks=40, return_logits=True
)


def made(family: str, seed: int) -> PreTrainedModel:
    """A model of odd sizes: widths that fill no vector, heads that share keys."""
    rng = random.Random(seed)
    num_kv_heads, head_dim = rng.choice((1, 2, 3)), rng.choice((2, 6, 16, 22))
    num_heads = num_kv_heads * rng.choice((1, 2, 5))
    sizes = {"vocab_size": rng.randrange(20, 90), "max_position_embeddings": 300}
    model_class, config_class, others = FAMILIES[family]
    if family == "gpt2":
        sizes |= {"n_embd": num_heads * head_dim, "n_head": num_heads, "n_layer": rng.choice((1, 3))}
    else:
        sizes |= {
            "hidden_size": num_heads * rng.randrange(3, 14),
            "intermediate_size": rng.randrange(5, 70),
            "num_hidden_layers": rng.choice((1, 3)),
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_kv_heads,
            "head_dim": head_dim,
        }
    torch.manual_seed(seed)
    model = model_class(config_class(**sizes, **others)).eval().requires_grad_(False)
    for each in model.parameters():  # also of norms and biases
        each.normal_(0.1, 0.4)
    return model


def asked(model: PreTrainedModel, seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            f"r{i}",
            tuple(rng.randrange(model.config.vocab_size) for _ in range(rng.choice((1, 2, 17, 90)))),
            rng.choice((1, 4, 11)),
        )
        for i in range(9)
    ]


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_what_the_model_does_and_no_row_depends_on_others_or_threads(
    family: str, seed: int
) -> None:
    model = made(family, seed)
    requests = asked(model, seed)
    plain = paged(model, CROWDED, native=False).generate(requests)
    engine = paged(model, CROWDED)
    assert engine._runner._pass.is_native
    answers = engine.generate(requests)
    with num_threads(2):
        twice = paged(model, CROWDED).generate(requests)
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(answers, twice, strict=True))
    for request, ours, theirs in zip(requests, answers, plain, strict=True):
        assert ours.token_ids == theirs.token_ids
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-3, atol=1e-3)
        alone = paged(model, EngineConfig(return_logits=True)).generate([request])
        assert torch.equal(alone[0].logits, ours.logits)


def test_changed_weights_are_followed() -> None:
    model = made("llama", 0)
    engine, requests = paged(model, CROWDED), asked(model, 0)
    before = engine.generate(requests)
    layer = model.model.layers[0]
    changes = {
        "in place, of a copy": lambda: layer.mlp.up_proj.weight.mul_(-1),
        "in place, of none": lambda: layer.input_layernorm.weight.mul_(-1),
        "of its memory": lambda: setattr(layer.mlp.up_proj.weight, "data", -layer.mlp.up_proj.weight),
        "through .data, of a copy": lambda: layer.mlp.up_proj.weight.data.mul_(3),
        "of a bias' memory": lambda: setattr(layer.mlp.up_proj.bias, "data", -layer.mlp.up_proj.bias),
        "of frequencies": lambda: model.model.rotary_emb.inv_freq.mul_(2),
    }
    for change in changes.values():
        change()
        after = engine.generate(requests)
        assert after != before
        assert after == paged(model, CROWDED).generate(requests)
        before = after


def test_what_it_does_not_know_is_run_otherwise() -> None:
    plain = made("llama", 0)
    hooked, other, changed = (made("llama", 0) for _ in range(3))
    hooked.model.norm.register_forward_hook(lambda *_: None)
    other.model.layers[0].mlp.act_fn = nn.Mish()
    changed.model.layers[0].mlp.forward = plain.model.layers[0].mlp.forward
    foreign = type("Foreign", (LlamaForCausalLM,), {"__module__": "alone"})(plain.config).eval()
    for model in (hooked, other, changed, foreign):
        engine = paged(model, EngineConfig())
        assert not engine._runner._pass.is_native
        assert engine.generate([Request("a", (1, 2, 3), 4)])


def test_a_token_that_no_table_has_is_an_error_and_no_memory_is_read() -> None:
    model = made("gpt2", 1)
    engine = paged(model, EngineConfig())
    engine.generate([Request("a", (1,), 1)])
    with pytest.raises(IndexError, match="beyond the model's embedding"):
        engine._runner._pass._native(*map(torch.Tensor.numpy, torch.tensor([[10**6], [0]])))
