"""The cost of a step and of a pass for the host, without a GPU: median process time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.models.shaped import build_model
from batchproof.models.shapes import SHAPES
from batchproof_paged import paged, runner, torch_kernels
from batchproof_paged.attention import Attached
from tests.selftest.device.fake.report import EagerTime, HostTime
from tests.selftest.device.fake.unprobed import unprobed

CPU = torch.device("cpu")
NOWHERE = "batchproof_nowhere"
NUM_WARMUPS, NUM_STEPS, NUM_PASSES = 10, 200, 60
PROMPT_LEN = {1: 1024, 8: 1024, 64: 1024, 256: 512}
NARROW = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 512,
}


def host_time(num_rows: int) -> HostTime:
    """Measures decode steps whose model repeats its answer at once, like a replayed graph that takes
    no time: what remains is planning, staging and recording."""
    context_len = PROMPT_LEN[num_rows]
    model = build_model(SHAPES["tiny"].config(num_hidden_layers=1, **NARROW), CPU, torch.float32)
    config = EngineConfig(max_num_seqs=num_rows, max_num_batched_tokens=4096, max_model_len=2048)
    options = {"backend": "blocks", "trace": False, "graphs": True, "overlap": True}
    with (
        unprobed(),
        mock.patch.object(runner, "call_again", _answered),
        # One captured step for all lengths, as the kernels in Triton have it.
        mock.patch.object(torch_kernels, "graph_columns", lambda _, width: width),
    ):
        engine: Any = paged(model, config, **options)
        num_new = NUM_WARMUPS + NUM_STEPS + 4 + num_rows * context_len // 4096
        for index in range(num_rows):
            prompt = tuple((7 * index + place) % 500 for place in range(context_len))
            engine.add(Request(f"r{index}", prompt, num_new + 1))
        while not _decodes(engine, num_rows):
            engine.step()
        for _ in range(NUM_WARMUPS):
            engine.step()
        times = _timed(engine.step, NUM_STEPS)
    assert _decodes(engine, num_rows), "a sequence ended while steps were timed"
    return HostTime(num_rows, context_len, median(times) / 1e3, quantiles(times, n=10)[-1] / 1e3)


def _decodes(engine: Any, num_rows: int) -> bool:
    """Returns whether the last step had `num_rows` rows of one token each."""
    rows = engine.trace[-1].rows if len(engine.trace) else ()
    return len(rows) == num_rows and all(row.query_len == 1 for row in rows)


def _answered(step: Callable[[], Any]) -> Callable[[], Any]:
    """Stands in for a capture."""
    with torch.inference_mode():
        outputs = step()
    return lambda: outputs


def eager_time(shape: str) -> EagerTime:
    """Measures a pass over 8 tokens: the shape's layers, tiny widths, attention that does nothing."""
    kind = SHAPES[shape]
    if kind.kind == "GPT2Config":
        config = kind.config(n_embd=32, n_head=2, vocab_size=512)
    else:
        config = kind.config(**NARROW)
    model = build_model(config, CPU, torch.float32)
    AttentionInterface.register(NOWHERE, _nowhere)
    token_ids = torch.arange(8)[None]
    last = torch.arange(2)

    def forward() -> None:
        with torch.inference_mode(), Attached(model, NOWHERE):
            _forward(model, token_ids, last)

    forward()
    return EagerTime(shape, config.num_hidden_layers, median(_timed(forward, NUM_PASSES)) / 1e6)


def _forward(model: PreTrainedModel, token_ids: Tensor, last: Tensor) -> None:
    model(input_ids=token_ids, position_ids=token_ids, use_cache=False, logits_to_keep=last)


def _nowhere(_: object, query: Tensor, __: object, value: Tensor, *___: object, **____: object) -> Any:
    """(1, num_heads, T, qk_dim) -> (1, T, num_heads, v_dim)."""
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3]), None


def _timed(call: Callable[[], object], times: int) -> list[int]:
    """Returns the process time of each of so many calls in nanoseconds."""
    taken = []
    for _ in range(times):
        begin = time.process_time_ns()
        call()
        taken.append(time.process_time_ns() - begin)
    return taken
