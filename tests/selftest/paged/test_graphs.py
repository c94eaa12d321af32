"""Captured steps without a GPU, recorded in Python or merely called again: what they compute, what an
engine prepares at construction, so that no step waits for it, and what it releases."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel

import batchproof_paged
from batchproof.api import EngineConfig, Request
from batchproof.models.catalogue import build_model, load_model
from batchproof.models.shapes import SHAPES
from batchproof_paged import build_unprobed, graphs, runner
from batchproof_paged.blocks import TRASH, BlockPool
from batchproof_paged.engine import PagedEngine
from batchproof_paged.graphs import CudaCapture, Outputs, Step
from batchproof_paged.kernels import StepRows
from batchproof_paged.options import PagedOptions

CPU = torch.device("cpu")
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
NARROW = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
}
AS_ON_CUDA = {"backend": "blocks", "graphs": True, "overlap": True, "prepare": True}
MODEL = build_model(SHAPES["tiny"].config(**NARROW), CPU, torch.float32)


def built(config: EngineConfig, model: PreTrainedModel = MODEL, **options: Any) -> PagedEngine:
    resolved = PagedOptions(**AS_ON_CUDA | options).resolved(CPU, torch.float32)
    return build_unprobed(model, config, resolved)


# Operators for whose result the host waits.
WAITS = {"item", "_local_scalar_dense", "nonzero"}


class Record(TorchDispatchMode):
    """Records operations while Python runs; a replay has operations and addresses only. It keeps no
    tensor alive that the step has not made itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any]] = []
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "batchproof":  # attention: what it calls is recorded
            with self:
                return func.redispatch(CPU_KEYS, *args, **(kwargs or {}))
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"{func} waits for the device in a capture")
        given = tree_map_only(Tensor, self._held, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._made.update(map(id, tensors(result)))
        self.calls.append((func, given, result))
        return result

    def _held(self, tensor: Tensor) -> Tensor | weakref.ref[Tensor]:
        return tensor if id(tensor) in self._made else weakref.ref(tensor)

    def replay(self) -> None:
        for func, given, result in self.calls:
            args, kwargs = tree_map_only(weakref.ref, still_there, given)
            again = func(*args, **kwargs)
            pairs = zip(tensors(result), tensors(again), strict=True)
            for old, new in pairs:
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def still_there(read: weakref.ref[Tensor]) -> Tensor:
    tensor = read()
    if tensor is None:
        raise RuntimeError("a replay reads a tensor that is gone")
    return tensor


def tensors(result: Any) -> list[Tensor]:
    results = result if isinstance(result, tuple | list) else [result]
    return [each for each in results if isinstance(each, Tensor)]


def record(step: Step) -> Step:
    """Captures a step as `CudaCapture` does: warm-ups, a recording, replays, for which it is held."""
    step()
    with Record() as recorded:
        outputs = step()

    def replay(_held: Step = step) -> Outputs:
        recorded.replay()
        return outputs

    return replay


@pytest.fixture
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "call_again", record)
    monkeypatch.setattr(runner, "_argmax", lambda logits: logits.argmax(dim=-1))  # NumPy's is unseen


@pytest.mark.every(2)
@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize(
    ("overlap", "budget", "num_blocks"),
    [(False, 3, None), (True, 16, 24)],
    ids=["read, pool grows", "read late, tables grow"],
)
def test_a_captured_step_answers_as_an_eager_one(
    overlap: bool, budget: int, num_blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With prompts whole, in chunks (also of one token) and beside decodes, with preemption and graphs
    whose tensors move; the logits of a step outlive the next, which overwrites them."""
    monkeypatch.setattr(batchproof_paged, "LONGEST_TABLE", 2)
    config = EngineConfig(3, budget, block_size=4, num_blocks=num_blocks, return_logits=True)
    model = load_model("mistral-window", CPU, torch.float32).model
    given = {"prepare": False, "overlap": overlap}
    eager, captured = (built(config, model, **given, graphs=each) for each in (False, True))
    generation = captured._backend.generation
    lengths = (9, 21, 1, 14, 4, 30, 2, 40)
    asked = [Request(f"r{i}", tuple(range(i, i + num)), 3 + 4 * i) for i, num in enumerate(lengths)]
    for ours, theirs in zip(captured.generate(asked), eager.generate(asked), strict=True):
        assert ours.token_ids == theirs.token_ids
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    assert captured._backend.generation > generation
    assert num_blocks is None or any(step.preempted for step in captured.trace)


class WaitsInACapture(BlockPool):
    """Reads a number from the device."""

    def attend(self, layer: int, query: Tensor, *rest: Any) -> Tensor:
        query[0, 0, 0].item()
        return super().attend(layer, query, *rest)


class DropsWhatAGraphReads(BlockPool):
    """Makes a summand for each step, in place of that which the captured step read."""

    def begin_static(self, rows: StepRows) -> None:
        super().begin_static(rows)
        self._zero = self._tables.new_zeros(1)

    def attend(self, layer: int, query: Tensor, *rest: Any) -> Tensor:
        return super().attend(layer, query + self._zero, *rest)


@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize(
    ("pool", "words"),
    [(WaitsInACapture, "waits for the device"), (DropsWhatAGraphReads, "a tensor that is gone")],
)
def test_a_recording_shows_what_a_gpu_would_refuse_or_read_in_vain(
    pool: type[BlockPool], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batchproof_paged, "BlockPool", pool)
    engine = built(EngineConfig(max_num_seqs=1, block_size=4), prepare=False)
    with pytest.raises(RuntimeError, match=words):
        engine.generate([Request("a", (1, 2, 3), 4)])


@pytest.mark.usefixtures("_recorded")
@torch.inference_mode()
def test_padding_rows_write_to_the_trash_block_alone() -> None:
    engine = built(EngineConfig(4, block_size=4, num_blocks=40), prepare=False, overlap=False)
    for index in range(3):
        engine.add(Request(f"r{index}", (1,) * (2 + index), 8))
    engine.step()
    cells = [layer.keys for layer in engine._backend.layers.values()]
    for each in cells:
        each[TRASH] = 7.0
    before = [each.clone() for each in cells]
    engine.step()
    rows = [(each.block_table, each.num_computed_tokens - 1) for each in engine._scheduler.running]
    fed = {(table[place // 4] + 1, place % 4) for table, place in rows}
    for old, new in zip(before, cells, strict=True):
        changed = {tuple(each) for each in (old != new).any(dim=3).any(dim=2).nonzero().tolist()}
        assert changed == fed | {(TRASH, 0)}, "one row of padding"


@pytest.fixture
def num_captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Its length."""
    captured: list[int] = []

    def capturing(step: graphs.Step) -> graphs.Step:
        captured.append(1)
        return step

    monkeypatch.setattr(runner, "call_again", capturing)
    # As the kernels in Triton have it: one captured step for all lengths.
    monkeypatch.setattr(BlockPool, "graph_columns", lambda pool, _: pool._tables.shape[1])
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
    engine = built(EngineConfig(max_num_seqs=2, max_model_len=64), model)
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
@pytest.mark.parametrize("options", [{}, {"graphs": False}], ids=str)
def test_a_dropped_engine_gives_its_memory_back_at_once(options: dict[str, Any]) -> None:
    """Without waiting for the garbage collector: the next engine needs the memory."""
    engine = built(EngineConfig(max_num_seqs=2, max_model_len=64), **options)
    engine.generate([Request("a", (1, 2, 3), 4)])
    pool = weakref.ref(engine._backend)
    del engine
    assert pool() is None


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
