"""Parts of the built-in engines that conformance does not show."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from batchproof.api import EngineConfig, Request, RowRecord
from batchproof.errors import UnsupportedModelError
from batchproof.models.catalogue import load_model
from batchproof.models.embedded import EMBEDDED
from batchproof.run.registry import resolve_engine
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.reference import reference


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_reference_agrees_with_the_librarys_own_generate(name: str) -> None:
    subject = load_model(name, torch.device("cpu"), torch.float32)
    rng = random.Random(3)
    engine = reference(subject.model, EngineConfig())
    for length in (1, 2, 7, 30):
        prompt = tuple(rng.randrange(256) for _ in range(length))
        (completion,) = engine.generate([Request("r", prompt, 12)])
        output = subject.model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert tuple(output[0, length:].tolist()) == completion.token_ids


def tiny(kind: type[PreTrainedModel], config: object) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)  # type: ignore[arg-type]
    return model.eval().requires_grad_(False)


def bloom() -> PreTrainedModel:
    config = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2)
    return tiny(BloomForCausalLM, config)


def mamba() -> PreTrainedModel:
    return tiny(MambaForCausalLM, MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2))


def dynamic_rope() -> PreTrainedModel:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters=rope,
    )
    return tiny(LlamaForCausalLM, config)


def test_a_recurrent_model_is_served_rightly_or_refused() -> None:
    """What runs elsewhere, in a server or an environment of its own, decides for itself."""
    model = mamba()
    for name in ("static", "ragged", "transformers-cb"):
        with pytest.raises(UnsupportedModelError, match=f"'{name}' cannot serve MambaForCausalLM"):
            resolve_engine(name).factory(model, EngineConfig())
    requests = [Request("a", (1, 2, 3, 4, 5), 6), Request("b", (9,), 6)]
    first, second = (
        resolve_engine(name).factory(model, EngineConfig(max_num_seqs=2)).generate(requests)
        for name in ("reference", "paged")
    )
    assert first == second


def test_alibi_is_refused_by_the_packed_engine_alone() -> None:
    """ALiBi builds its bias from a 2-D padding mask, which a packed row has none of."""
    model = bloom()
    with pytest.raises(UnsupportedModelError, match="'ragged' cannot serve BloomForCausalLM"):
        resolve_engine("ragged").factory(model, EngineConfig())
    engines = [
        resolve_engine(n).factory(model, EngineConfig(max_num_seqs=2)) for n in ("reference", "static")
    ]
    requests = [Request("a", (1, 2, 3, 4, 5), 6), Request("b", (9,), 6)]
    first, second = (engine.generate(requests) for engine in engines)
    assert first == second


@pytest.mark.parametrize("name", ["static", "ragged"])
def test_rope_that_depends_on_the_batch_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="RoPE type 'dynamic' depends on the whole batch"):
        resolve_engine(name).factory(dynamic_rope(), EngineConfig())


def test_ragged_serves_eager_attention_as_well() -> None:
    config = GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2
    )
    config._attn_implementation = "eager"
    model = tiny(GPT2LMHeadModel, config)
    requests = [Request("a", (1, 2, 3, 4, 5), 6), Request("b", (9,), 6)]
    reference_answer = resolve_engine("reference").factory(model, EngineConfig()).generate(requests)
    assert (
        resolve_engine("ragged").factory(model, EngineConfig()).generate(requests) == reference_answer
    )


def test_ragged_refuses_to_generate_while_others_are_running() -> None:
    subject = load_model("gpt2-random", torch.device("cpu"), torch.float32)
    engine = resolve_engine("ragged").factory(subject.model, EngineConfig())
    engine.add(Request("a", (1, 2), 4))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="unfinished"):
        engine.generate([Request("b", (1,), 1)])


class HostTensors(TorchDispatchMode):
    """Notes the size of the largest tensor that is made on the CPU."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type == "cpu":
            self.largest = max(self.largest, made.numel())
        return made


@pytest.mark.parametrize("window", [None, 5])
def test_ragged_makes_its_mask_on_the_device(window: int | None) -> None:
    """It was made on the host and copied, 316 ms of a step of 623 tokens. `meta` stands in for a
    device: it has shapes and no values."""
    model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
    engine = RaggedEngine(model.to("meta"), EngineConfig())
    engine._window = window
    rows = [RowRecord("a", 30, 1, True), RowRecord("b", 0, 9, True)]
    with HostTensors() as host:
        mask = engine._additive_mask(rows)
    assert isinstance(mask, torch.Tensor)
    assert (mask.device.type, tuple(mask.shape)) == ("meta", (1, 1, 10, 40))
    assert host.largest <= len(rows), "lengths alone come from the host"
