"""One compiled layer for all, installed in the model for a pass and removed again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.errors import UnsupportedModelError
from batchproof_paged import compiled, paged, runner
from batchproof_paged.options import PagedOptions

CPU = torch.device("cpu")
MANY_LAYERS = 12  # more than the compiler would make of one piece of code
NUM_PIECES = 3  # a layer, the last norm and the rotary embedding
CONFIG = EngineConfig(max_num_seqs=4, max_num_batched_tokens=16, block_size=4, return_logits=True)
ASKED = [Request(f"r{i}", tuple(range(1, 3 + 5 * i)), 4 + i) for i in range(5)]


def llama(num_layers: int) -> PreTrainedModel:
    torch.manual_seed(0)
    # A head is no wider than a probing step is long, or the compiler would take them for one size.
    sizes = {"hidden_size": 48, "intermediate_size": 32, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, num_hidden_layers=num_layers, initializer_range=0.2)
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def model() -> PreTrainedModel:
    return llama(num_layers=4)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Counts the compilations of a backend that changes nothing."""
    from torch._dynamo.testing import CompileCounter  # with it comes what a second of imports takes

    counted = CompileCounter()
    monkeypatch.setattr(compiled, "_quiet", lambda *_: counted)
    torch._dynamo.reset()
    yield counted
    torch._dynamo.reset()


def test_one_layer_is_compiled_for_all_and_for_all_batches(counter: Any) -> None:
    model = llama(MANY_LAYERS)
    engine = paged(model, CONFIG, backend="blocks", graphs=True, compile=True)
    answers = engine.generate(ASKED)
    assert counter.frame_count == NUM_PIECES, "a layer's number, or that of tokens, became a constant"
    paged(model, CONFIG, backend="blocks", graphs=True, compile=True).generate(ASKED)
    assert counter.frame_count == NUM_PIECES, "a second engine compiles nothing"
    plain = paged(model, CONFIG, compile=False, native=False).generate(ASKED)
    assert [each.token_ids for each in answers] == [each.token_ids for each in plain]


def test_the_layers_are_their_own_again_after_a_pass_even_one_that_fails(
    model: PreTrainedModel,
) -> None:
    layers = model.model.layers
    engine = paged(model, CONFIG, compile="eager")
    answers = engine.generate(ASKED)

    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone")

    handle = layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="device is gone"):
        engine.generate(ASKED)
    assert not any("forward" in layer.__dict__ for layer in layers)
    handle.remove()
    again = engine.generate(ASKED)
    assert [each.token_ids for each in again] == [each.token_ids for each in answers]


@pytest.mark.parametrize("damage", ["raises", "is wrong", "waits in a capture"])
def test_what_the_compiler_or_a_capture_spoils_is_left_out_unless_it_was_asked_for(
    model: PreTrainedModel, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose capture failed used to be served by its own attention, ten times as slow."""

    def spoiling(graph: Any, _examples: Any) -> Any:
        if damage == "raises":
            raise RuntimeError("no compiler today")
        return lambda *args: [each * 1.5 for each in graph.forward(*args)]

    def waiting(_step: Any) -> Any:
        raise RuntimeError("operation not permitted")

    by_default: dict[str, Any] = {"backend": "blocks", "graphs": True, "overlap": True}
    monkeypatch.setattr(compiled, "_quiet", lambda *_: spoiling)
    if damage == "waits in a capture":
        monkeypatch.setattr(runner, "call_again", waiting)
    with pytest.raises(UnsupportedModelError, match="cannot serve"):
        paged(model, CONFIG, **by_default, compile=True)
    # As on a GPU, where it is the default:
    resolved = PagedOptions.resolved

    def as_on_a_gpu(options: PagedOptions, *given: Any) -> PagedOptions:
        asked = {name: value for name, value in by_default.items() if getattr(options, name) is None}
        asked |= {"compile": True} if options.compile is None else {}
        return resolved(replace(options, **asked), *given)

    monkeypatch.setattr(PagedOptions, "resolved", as_on_a_gpu)
    engine = paged(model, CONFIG, backend="blocks")
    given_up = ["its layers are not compiled: a trial batch failed: ", "its steps are not captured: "]
    said = [note.startswith(begin) for note, begin in zip(engine.notes, given_up, strict=False)]
    assert said == [True, True] if damage == "waits in a capture" else [True]
    plain = paged(model, CONFIG, backend="blocks", compile=False, graphs=False).generate(ASKED)
    assert [each.token_ids for each in engine.generate(ASKED)] == [each.token_ids for each in plain]
