"""What an engine prepares at construction, so that no step waits for it, and what it releases."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch

from batchproof.api import EngineConfig, Request
from batchproof.models.shaped import build_model
from batchproof.models.shapes import SHAPES
from batchproof_paged import (
    build_unprobed,
    graphs,
    runner,
    torch_kernels,
)
from batchproof_paged.blocks import BlockPool
from batchproof_paged.engine import PagedEngine
from batchproof_paged.graphs import Outputs
from batchproof_paged.options import PagedOptions

CPU = torch.device("cpu")
NARROW = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
}
AS_ON_CUDA = {"backend": "blocks", "trace": False, "graphs": True, "overlap": True, "prepare": True}
MODEL = build_model(SHAPES["tiny"].config(**NARROW), CPU, torch.float32)


def built(config: EngineConfig, **options: Any) -> PagedEngine:
    return build_unprobed(
        MODEL, config, PagedOptions(**AS_ON_CUDA | options).resolved(CPU, torch.float32)
    )


@pytest.fixture
def num_captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Its length."""
    captured: list[int] = []

    def capturing(step: graphs.Step) -> graphs.Step:
        captured.append(1)
        return step

    monkeypatch.setattr(runner, "call_again", capturing)
    # As the kernels in Triton have it: one captured step for all lengths.
    monkeypatch.setattr(torch_kernels, "graph_columns", lambda _, width: width)
    return captured


def test_no_step_captures_anything_or_moves_the_pool(num_captures: list[int]) -> None:
    engine = built(EngineConfig(max_num_seqs=8, max_model_len=512))
    before, generation = len(num_captures), engine._backend.generation
    engine.generate([Request(f"r{i}", tuple(range(1 + 7 * i)), 3 + 60 * i) for i in range(8)])
    assert len(num_captures) == before > 0
    assert engine._backend.generation == generation


def test_steps_are_captured_again_when_a_weight_lies_elsewhere(num_captures: list[int]) -> None:
    """A graph would go on reading where the old one lay."""
    model = copy.deepcopy(MODEL)
    options = PagedOptions(**AS_ON_CUDA).resolved(CPU, torch.float32)
    engine = build_unprobed(model, EngineConfig(max_num_seqs=2, max_model_len=64), options)
    asked, before = [Request("a", (1, 2, 3), 4)], len(num_captures)
    model.lm_head.weight.data.neg_()
    engine.generate(asked)
    assert len(num_captures) == before, "in place"
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())
    engine.generate(asked)
    assert len(num_captures) > before


@pytest.mark.parametrize(
    ("limits", "free_bytes", "num_blocks"),
    [
        ({"max_model_len": 41}, None, 3 * 11 + 1),
        ({"max_model_len": 41}, 2 * 20 * 1024, 20),  # half of what is free
        ({"max_model_len": 28, "num_blocks": 7}, None, 8),
    ],
    ids=["as large as the limits allow", "as memory permits", "as asked"],
)
def test_a_pool_is_made_as_large_as_it_will_ever_be(
    limits: dict[str, int], free_bytes: int | None, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if free_bytes is not None:
        monkeypatch.setattr("batchproof_paged.blocks.free_bytes", lambda _: free_bytes)
    pool = built(EngineConfig(max_num_seqs=3, block_size=4, **limits))._backend
    assert isinstance(pool, BlockPool)
    block_bytes = 2 * 2 * 4 * 16 * 4  # keys and values, layers, block_size, head_dim, float32
    assert pool.num_bytes == num_blocks * block_bytes


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"compile": "eager"}], ids=str)
def test_a_dropped_engine_gives_its_memory_back_at_once(options: dict[str, Any]) -> None:
    """Without waiting for the garbage collector: the next engine needs the memory."""
    engine = built(EngineConfig(max_num_seqs=2, max_model_len=64), **options)
    engine.generate([Request("a", (1, 2, 3), 4)])
    pool = weakref.ref(engine._backend)
    del engine
    assert pool() is None


def test_logits_of_a_step_outlive_the_next_which_overwrites_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(max_num_seqs=2, max_model_len=64, return_logits=True)
    asked = [Request("a", (1, 2, 3), 6), Request("b", (4, 5), 4)]
    expected = built(config, graphs=False).generate(asked)

    def with_outputs_that_never_move(step: graphs.Step) -> graphs.Step:
        kept = step()

        def replay() -> Outputs:
            for old, new in zip(kept, step(), strict=True):
                old.copy_(new)
            return kept

        return replay

    monkeypatch.setattr(runner, "call_again", with_outputs_that_never_move)
    for ours, theirs in zip(built(config).generate(asked), expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def graph() -> Iterator[mock.Mock]:
    """`torch.cuda.graph`, where there is none."""
    graphs._stream.cache_clear()
    made = ("Stream", "CUDAGraph", "current_stream")
    handles = mock.Mock(side_effect=range(10))
    standing_in = {"graph": mock.MagicMock(), "graph_pool_handle": handles}
    with mock.patch.multiple(
        torch.cuda, stream=lambda _: nullcontext(), **dict.fromkeys(made, mock.DEFAULT), **standing_in
    ):
        torch.cuda.Stream.side_effect = lambda _device: mock.Mock()
        yield standing_in["graph"]
    graphs._stream.cache_clear()


def test_captures_share_a_stream_and_a_pool_that_still_has_graphs(graph: mock.Mock) -> None:
    """A separate stream left a cuBLAS workspace behind for each capture, and a pool without any graphs
    must not be used again."""
    device = torch.device("cuda:1")
    captures, others = graphs.CudaCapture(device), graphs.CudaCapture(device)
    for _ in range(2):
        captures(lambda: ())
    captures.forget()
    captures(lambda: ())
    others(lambda: ())
    assert torch.cuda.Stream.call_args_list == [mock.call(device)]
    asked = [call.kwargs for call in graph.call_args_list]
    assert [each["pool"] for each in asked] == [0, 0, 2, 1]
    assert len({id(each["stream"]) for each in asked}) == 1
    assert {each["capture_error_mode"] for each in asked} == {"thread_local"}, "others may work"
