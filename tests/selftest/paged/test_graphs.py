"""Steps by layout, without a GPU: replayed in Python, or merely called again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from batchproof.models.shaped import build_model
from batchproof.models.shapes import SHAPES
from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import TRASH, BlockPool
from batchproof_paged.graphs import (
    Capture,
    CapturedSteps,
    CudaCapture,
    LastTokens,
    Outputs,
    Step,
    call_again,
    decode_buckets,
    prompt_buckets,
)
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.sequence import PENDING, Sequence
from tests.selftest.paged.rehearsal import sequence

CPU = torch.device("cpu")
VOCAB, WIDTH, NUM_LANES, BLOCK_SIZE = 61, 32, 6, 4
BUCKETS = decode_buckets(NUM_LANES), (16, 24)
FORMS = AttentionForm(0.3, window=5, softcap=3.0), AttentionForm(0.3, sinks=torch.ones(4))


class Record(TorchDispatchMode):
    """Records operations while Python runs; a replay has operations and addresses only."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            pairs = zip(tensors(result), tensors(again), strict=True)
            for old, new in pairs:
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(result: Any) -> list[Tensor]:
    results = result if isinstance(result, tuple | list) else [result]
    return [each for each in results if isinstance(each, Tensor)]


def record(step: Step) -> Step:
    """Captures a step as `CudaCapture` does: warm-ups, a recording, replays."""
    step()
    with Record() as recorded:
        outputs = step()

    def replay() -> Outputs:
        recorded.replay()
        return outputs

    return replay


@dataclass
class Model:
    """Two layers of attention with random weights over a pool."""

    pool: BlockPool

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.weights = torch.randn(2, 4, WIDTH, WIDTH, generator=generator) / WIDTH**0.5

    def forward(self, token_ids: Tensor, positions: Tensor, last: Tensor) -> Outputs:
        assert positions.min() >= 0, "a table of positions would be read before its beginning"
        hidden = self.embedding[token_ids[0]] + torch.sin(positions[0, :, None] / 3.0)
        for layer, (to_query, to_key, to_value, to_hidden) in enumerate(self.weights):
            query, key, value = (
                (hidden @ each).unflatten(1, (-1, 8))
                for each in (to_query, to_key[:, :16], to_value[:, :16])
            )
            mixed = self.pool.attend(layer, query, key, value, FORMS[layer])
            hidden = hidden + mixed.flatten(1) @ to_hidden
        logits = hidden[last] @ self.embedding.T
        return logits.argmax(dim=1), logits


@dataclass
class Bench:
    """A pool, the model, and its sequences, fed step by step, eagerly or by graph."""

    capture: Capture | None = None
    num_blocks: int | None = 60
    num_columns: int = 16
    num_captures: int = 0
    sequences: dict[str, Sequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = BlockPool(
            NUM_LANES,
            BLOCK_SIZE,
            self.num_blocks,
            1e4,
            device=CPU,
            num_columns=self.num_columns,
        )
        self.model = Model(self.pool)
        self.last_tokens = LastTokens(NUM_LANES, CPU)
        self.free = list(range(60))
        pieces = self.pool, self.model.forward, self.last_tokens
        self.graphs = CapturedSteps(*pieces, BUCKETS, self._count, lambda: None)

    def _count(self, step: Step) -> Step:
        self.num_captures += 1
        return self.capture(step) if self.capture is not None else step

    def batch(self, *rows: tuple[str, int]) -> RaggedBatch:
        """Samples a row if it feeds all tokens that its sequence has left."""
        scheduled = []
        for name, query_len in rows:
            each = self.sequences[name]
            context_len = each.num_computed_tokens
            while len(each.block_table) * BLOCK_SIZE < context_len + query_len:
                each.block_table.append(self.free.pop(len(self.free) // 2))
            each.num_computed_tokens += query_len
            is_sampled = each.num_computed_tokens == len(each.token_ids)
            scheduled.append(Scheduled(each, context_len, query_len, is_sampled))
        return RaggedBatch.of(Rows.of(scheduled))

    @torch.inference_mode()
    def step(self, *rows: tuple[str, int]) -> Tensor:
        """Chooses and appends a token for each sampled row, and returns the logits (S, vocab)."""
        batch = self.batch(*rows)
        if self.capture is not None and self.graphs.can_run(batch):
            ids, logits = self.graphs.run(batch)
        else:
            ids, logits = self._eager(batch)
        for each, token_id in zip(batch.sampled, ids.tolist(), strict=True):
            each.sequence.token_ids.append(token_id)
        return logits.clone()

    def _eager(self, batch: RaggedBatch) -> Outputs:
        self.pool.begin(batch)
        lanes = torch.from_numpy(np.repeat(batch.lanes, batch.query_lens))
        tokens = self.last_tokens.fill_in(torch.from_numpy(batch.token_ids), lanes)
        last = torch.from_numpy(batch.sampled_tokens)
        ids, logits = self.model.forward(tokens[None], torch.from_numpy(batch.position_ids)[None], last)
        self.last_tokens.put(torch.from_numpy(batch.lanes[batch.sampled_rows]), ids)
        return ids, logits

    def admit(self, name: str, lane: int, prompt: list[int]) -> None:
        self.sequences[name] = sequence(name, lane)
        self.sequences[name].token_ids = list(prompt)


def started(capture: Capture | None, **options: Any) -> Bench:
    """Returns a bench of five sequences whose prompts are computed; lane 2 is free."""
    bench = Bench(capture, **options)
    for lane, length in ((0, 3), (1, 9), (3, 2), (4, 16), (5, 5)):
        bench.admit(f"s{lane}", lane, [(7 * lane + i) % VOCAB for i in range(length)])
        bench.step((f"s{lane}", length))
    return bench


DECODING = (["s1"], ["s0", "s4"], ["s0", "s1", "s3", "s4", "s5"], ["s1", "s3", "s5"], ["s4"]) * 3


@pytest.mark.parametrize("capture", [call_again, record])
def test_a_token_that_the_host_has_not_read_is_taken_from_its_lane(capture: Capture) -> None:
    known, pending = started(capture), started(capture)
    for names in DECODING:
        for name in names:
            pending.sequences[name].token_ids[-1] = PENDING
        rows = [(name, 1) for name in names]
        assert torch.equal(known.step(*rows), pending.step(*rows))


@torch.inference_mode()
def test_padding_rows_write_to_the_trash_block_alone() -> None:
    bench = started(call_again)
    for layer in bench.pool._layers.values():
        layer.keys[TRASH] = layer.values[TRASH] = 7.0
    before = [layer.keys.clone() for layer in bench.pool._layers.values()]
    batch = bench.batch(*((name, 1) for name in ("s0", "s1", "s3", "s4", "s5")))
    bench.graphs.run(batch)  # for up to 6 rows
    fed = set(batch.slot_mapping(BLOCK_SIZE).tolist())
    for old, layer in zip(before, bench.pool._layers.values(), strict=True):
        is_changed = (old != layer.keys).flatten(0, 1).any(dim=2).any(dim=1)
        changed = set(is_changed.nonzero().flatten().tolist())
        assert len(changed) == len(fed) + 1, "one row of padding"
        assert {slot - BLOCK_SIZE for slot in changed if slot >= BLOCK_SIZE} == fed


def test_a_capture_touches_no_sequence() -> None:
    bench = started(record)
    before = [layer.keys[1:].clone() for layer in bench.pool._layers.values()]
    newest = bench.last_tokens._ids[:-1].clone()
    num_captures = bench.num_captures
    bench.graphs.prepare(seq_len=60)
    assert bench.num_captures == num_captures + len(BUCKETS[0]) + 2 * len(BUCKETS[1])
    after = [layer.keys[1:] for layer in bench.pool._layers.values()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert torch.equal(newest, bench.last_tokens._ids[:-1])


@pytest.mark.parametrize(("num_blocks", "num_columns"), [(60, 4), (None, 16)], ids=["tables", "pool"])
def test_graphs_are_captured_again_when_their_tensors_have_moved(
    num_blocks: int | None, num_columns: int
) -> None:
    options = {"num_blocks": num_blocks, "num_columns": num_columns}
    eager, captured = started(None, **options), started(record, **options)
    for bench in (eager, captured):
        bench.admit("long", 2, [5])
        bench.step(("long", 1))
    generation = captured.pool.generation
    for index in range(40):
        if index == 20 and num_blocks is None:
            eager.free, captured.free = (list(range(100, 120)) for _ in range(2))
        # s3 is as short then as the other was in the beginning, and would take the graphs of that time.
        for name in ("long", "s3")[: 1 + (index >= 20)]:
            assert torch.allclose(eager.step((name, 1)), captured.step((name, 1)), atol=1e-4)
    assert captured.pool.generation > generation


@pytest.mark.parametrize(
    ("shape", "prompts"),
    [("tiny", [16, 64, 256, 1024, 2048]), ("llama-8b", [16, 32, 64, 128, 256, 512, 597])],
)
def test_prompts_are_captured_whose_launch_takes_longer_than_their_run(
    shape: str, prompts: list[int]
) -> None:
    model = build_model(SHAPES[shape].config(), torch.device("meta"), torch.bfloat16)
    assert prompt_buckets(model, most=8192) == prompts


DECODES = tuple(dict.fromkeys(names, 1) for names in DECODING)
# Prompts whole, in chunks, also of one token that is not sampled, of several sequences, beside decodes
# and alone; a former tenant's lane.
MIXED = (
    {"s0": 1, "p": 3},
    {"p": 1, "s3": 1},
    {"p": 1, "s1": 1, "q": 7},
    {"q": 4, "s5": 1, "s4": 1, "p": 1},
    {"r": 9, "t": 2},
    {"r": 1, "t": 5, "q": 1, "p": 1, "s3": 1, "s1": 1},
    {"r": 1, "t": 1, "q": 1},
)


@pytest.mark.parametrize("steps", [DECODES, MIXED], ids=["decodes", "with prompts"])
@pytest.mark.parametrize("capture", [call_again, record])
def test_a_captured_step_chooses_what_an_eager_one_chooses(
    capture: Capture, steps: tuple[dict[str, int], ...]
) -> None:
    eager, captured = started(None), started(capture)
    for bench in (eager, captured):
        for name, lane, length in (("p", 2, 6), ("q", 0, 12), ("r", 4, 9), ("t", 5, 8)):
            bench.admit(name, lane, [(5 * lane + i) % VOCAB for i in range(length)])
    before = captured.num_captures
    for rows in steps:
        expected, got = (bench.step(*rows.items()) for bench in (eager, captured))
        # Rows beside padding are multiplied in other shapes: rounding may differ.
        assert torch.allclose(expected, got, atol=1e-4)
    for name in eager.sequences:
        assert eager.sequences[name].token_ids == captured.sequences[name].token_ids
    assert captured.num_captures > before + 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_cuda_graph_is_replayed_with_new_input_and_keeps_what_else_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "check_input_liveness" in signature(torch.cuda.graph).parameters:
        monkeypatch.setattr(CudaCapture, "checks", {"check_input_liveness": True})
    given = torch.zeros(3, device="cuda")

    def recorded() -> Step:
        factor = torch.full_like(given, 2.0)
        return CudaCapture(given.device)(lambda: (given * factor,))

    replay = recorded()
    torch.full((3,), 5.0, device="cuda")  # would take the place of the factor
    given.fill_(4.0)
    assert replay()[0].tolist() == [8.0, 8.0, 8.0]
