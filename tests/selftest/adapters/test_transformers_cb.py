"""The adapter of transformers' continuous batching: what conformance does not show of it."""

import threading
from collections.abc import Callable, Iterator
from time import process_time, sleep
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from batchproof.api import EngineConfig, FinishReason, Request
from batchproof.checks.environment import require_same, world_of
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine
from batchproof_engines.adapters import transformers_engine
from tests.selftest.conftest import needs_psutil

pytestmark = needs_psutil

Build = Callable[..., Any]
REQUESTS = [Request("a", (1, 2, 3, 4, 5), 6), Request("b", (9,), 3), Request("c", (7, 7, 8), 5)]


@pytest.fixture
def build(model: PreTrainedModel) -> Iterator[Build]:
    """`build(options, **config)`: the engine with the options of `--engine`, closed in the end."""
    made = []

    def build(options: str = "", served: PreTrainedModel = model, **config: Any) -> Any:
        factory = resolve_engine(f"transformers-cb{options}").factory
        made.append(factory(served, EngineConfig(**config)))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def right(model: PreTrainedModel, requests: list[Request]) -> Any:
    return resolve_engine("reference").factory(model, EngineConfig()).generate(requests)


def test_a_thread_that_is_kept_between_calls_rests_and_ends_with_the_engine(build: Build) -> None:
    before = threading.active_count()
    engine = build()
    engine.generate(REQUESTS)
    assert threading.active_count() == before + 1
    began = process_time()
    sleep(0.5)
    assert process_time() - began < 0.1
    engine.close()
    assert threading.active_count() == before


def test_an_engine_that_nobody_closed_ends_with_its_last_reference(build: Build) -> None:
    build().close()  # what is asked once for each model
    before = threading.active_count()
    engine = resolve_engine("batchproof_engines.adapters.transformers_cb:transformers_cb").factory
    model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
    unclosed = engine(model, EngineConfig(max_model_len=32))
    assert threading.active_count() == before + 1
    del unclosed
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("options", "place", "error", "words"),
    [
        ("", "forward", ZeroDivisionError, "transformers failed: planted"),  # in its thread
        ("", "next_output", KeyboardInterrupt, "planted"),
        ("?stepping=true", "next_output", KeyboardInterrupt, "planted"),
    ],
)
def test_a_call_that_fails_or_is_cut_short_leaves_nothing_to_the_next(
    build: Build,
    model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    place: str,
    error: type[BaseException],
    words: str,
) -> None:
    engine, holder = build(options), model.transformer if place == "forward" else transformers_engine
    with monkeypatch.context() as patch:
        patch.setattr(holder, place, Mock(side_effect=error("planted")))
        with pytest.raises((RuntimeError, KeyboardInterrupt), match=words):
            engine.generate(REQUESTS)
    again = [Request(r.request_id, r.prompt_token_ids[::-1], 4) for r in REQUESTS]
    assert engine.generate(again) == right(model, again)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_attention_is_borrowed_for_a_call_only(build: Build, implementation: str) -> None:
    config = GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel._from_config(config, attn_implementation=implementation).eval()
    torch.rand(1)
    before = world_of(model)
    engine = build(served=model)
    require_same(before, world_of(model), "when the engine was built")
    assert engine.generate(REQUESTS) == right(model, REQUESTS)
    require_same(before, world_of(model), "during generate")
    assert "attention paged|eager" in engine.notes[0] or implementation == "sdpa"


def test_a_pool_that_is_given_refuses_what_it_can_never_hold(build: Build) -> None:
    engine = build(max_num_seqs=2, block_size=2, num_blocks=5)
    fits, too_large = Request("fits", (1, 2, 3), 8), Request("large", (1, 2, 3), 9)
    first, second = engine.generate([too_large, fits])
    assert (first.finish_reason, second.finish_reason) == (FinishReason.ERROR, FinishReason.LENGTH)
    assert first.error == "it needs 6 blocks of KV cache, but the pool has 5"


def test_what_was_cancelled_is_out_of_the_model_when_it_is_given_back(build: Build) -> None:
    engine = build("?stepping=true&attention=eager", max_model_len=48)
    engine.add(Request("long", tuple(range(1, 30)), 19))
    engine.step()
    engine.abort("long")
    assert [event.finish_reason for event in engine.step()] == [FinishReason.ABORTED]
    assert not engine.has_unfinished
    engine.generate(REQUESTS)
