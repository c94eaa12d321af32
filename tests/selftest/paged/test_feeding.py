"""How models that cannot be fed as a packed row are fed, and what is kept of them between passes."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.errors import UnsupportedModelError
from batchproof.models.catalogue import load_model, moved
from batchproof.models.embedded import EMBEDDED, STATE_MODEL
from batchproof_engines.reference import reference
from batchproof_paged import paged
from tests.selftest.tiny_models import tiny

CONFIG = EngineConfig(max_num_seqs=3, block_size=4, max_num_batched_tokens=8)
REQUESTS = [
    Request(f"r{index}", tuple((31 * index + 7 * place) % 256 for place in range(length)), cap)
    for index, (length, cap) in enumerate([(9, 5), (1, 7), (13, 3), (4, 9), (9, 5)])
]


@pytest.fixture(scope="module")
def hybrid() -> PreTrainedModel:
    return load_model(STATE_MODEL, torch.device("cpu"), torch.float32).model


def tokens(engine: Any) -> list[tuple[int, ...]]:
    return [each.token_ids for each in engine.generate(REQUESTS)]


def right_tokens(request: Request) -> tuple[int, ...]:
    oracle = EMBEDDED[STATE_MODEL].oracle
    assert oracle is not None
    return tuple(oracle(request.prompt_token_ids, request.max_new_tokens))


@pytest.mark.parametrize(
    "options",
    [
        {"feed": "stacked", "backend": "lanes"},
        {"feed": "stacked", "backend": "blocks"},
        {"feed": "stacked", "one_by_one": True},
        {"feed": "separate", "one_by_one": False},
        {"feed": "separate", "one_by_one": True},
    ],
    ids=str,
)
def test_each_way_gives_the_integer_oracles_tokens(
    hybrid: PreTrainedModel, options: dict[str, Any]
) -> None:
    engine = paged(hybrid, CONFIG, **options)
    assert tokens(engine) == [*map(right_tokens, REQUESTS)]


def test_a_way_that_would_be_wrong_is_refused_with_the_reason(hybrid: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedModelError, match="layers of type linear_attention"):
        paged(hybrid, CONFIG, feed="packed")
    model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
    with pytest.raises(UnsupportedModelError, match="its layers carry no state"):
        paged(model, CONFIG, feed="stacked")


def test_sixteen_bits_hide_no_wrong_way_from_the_trial_batch() -> None:
    """BART counts positions from its cache: as a packed row it would be wrong in any dtype."""
    model = moved(tiny("plbart"), "cpu", torch.bfloat16)
    for weight in model.parameters():
        weight.data.mul_(0.5)
    with pytest.raises(UnsupportedModelError, match="in a batch its logits differ"):
        paged(model, CONFIG, feed="packed")
    assert paged(model, CONFIG).notes[0].startswith("the slow way")


# In the first transformers has the window in the mask, but does not pass it to the attention function.
@pytest.mark.parametrize(
    ("model_type", "change"), [("phimoe", {"sliding_window": 5}), ("bert", {"is_decoder": False})]
)
def test_a_mask_that_attention_is_not_told_of_is_refused_and_the_model_keeps_its_attention(
    model_type: str, change: dict[str, Any]
) -> None:
    model = tiny(model_type, **change)
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match="its mask differs from what the attention"):
        paged(model, CONFIG, feed="packed")
    assert model.config._attn_implementation == before


def test_a_step_that_failed_is_repeated(hybrid: PreTrainedModel) -> None:
    engine = paged(hybrid, CONFIG)
    for request in REQUESTS:
        engine.add(request)
    engine.step()

    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone")

    handle = hybrid.lm_head.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="device is gone"):
        engine.step()
    handle.remove()
    answers: dict[str, list[int]] = {each.request_id: [] for each in REQUESTS}
    while engine.has_unfinished:
        for event in engine.step():
            answers[event.request_id].append(event.token_id)
    for request in REQUESTS:
        left = answers[request.request_id]
        assert right_tokens(request)[-len(left) :] == tuple(left)


def test_a_way_that_the_model_itself_refuses_is_passed_over() -> None:
    assert paged(tiny("minimax"), CONFIG).notes[0].startswith("the slow way")


def test_a_model_that_knows_one_sequence_alone_gets_one_at_a_time() -> None:
    model = tiny("rwkv")
    twins = [Request(f"r{index}", (5 + index, 6, 7), 2 + index) for index in range(3)]
    right, got = (engine(model, CONFIG).generate(twins) for engine in (reference, paged))
    assert [each.token_ids for each in got] == [each.token_ids for each in right]
