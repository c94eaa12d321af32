"""The share of the memory ceiling that decode attention reaches.

python -m tests.gpu.attention cuda measures.jsonl
"""

import sys
from collections.abc import Callable
from itertools import product
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from batchproof.models.shapes import SHAPES
from batchproof.run.devices import synchronise
from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import (
    DecodeRows,
    Kernels,
    LayerCache,
    LayerPass,
    load_kernels,
    triton_works,
)
from tests.gpu.measures import Measures, measured

SERVED = ("llama-8b", "llama-1b", "qwen3-0.6b")
DTYPE = torch.bfloat16
Action = Callable[[], object]
BLOCK_SIZE = 16
BEYOND_CACHES_BYTES = 1 << 28  # of the keys and values that take turns


class Sizes(NamedTuple):
    """How many sequences, tokens of each up to the longest, and columns of tables that are wider."""

    num_seqs: int
    seq_len: int
    longest: int | None = None
    num_columns: int | None = None

    def __str__(self) -> str:
        up_to = f"-{self.longest}" if self.longest else ""
        wide = f", tables of {self.num_columns} blocks" if self.num_columns else ""
        return f"{self.num_seqs} x {self.seq_len}{up_to}{wide}"


EVEN = tuple(Sizes(*each) for each in ((64, 1024), (8, 1024), (1, 1024), (256, 1024), (64, 4096)))
UNEVEN = Sizes(64, 128, 4096), Sizes(64, 128, 4096, 8192), Sizes(64, 1024, None, 8192)
FEW = (Sizes(2, 40), Sizes(3, 1, 40, 8))


class Crowd:
    """Sequences in so many layers that no cache of the device can hold them."""

    def __init__(self, shape: str, sizes: Sizes, device: torch.device) -> None:
        config = SHAPES[shape].config()
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        num_seqs, shortest, longest, num_columns = sizes
        lengths = torch.linspace(shortest, longest or shortest, num_seqs).long()
        lengths = lengths[torch.randperm(num_seqs)]
        blocks = -(-lengths // BLOCK_SIZE)
        num_blocks = int(blocks.sum()) + 1
        num_columns = num_columns or int(blocks.max())
        self.num_bytes = 2 * int(lengths.sum()) * kv_heads * dim * DTYPE.itemsize
        num_layers = max(1, min(32, 2 * BEYOND_CACHES_BYTES // self.num_bytes))

        def cells() -> torch.Tensor:
            sizes = (num_blocks, BLOCK_SIZE, kv_heads, dim)
            return torch.randn(sizes, device=device, dtype=DTYPE)

        self.layers = [
            LayerCache(cells(), cells()) for _ in range(num_layers if device.type == "cuda" else 1)
        ]
        self.tables = torch.zeros(num_seqs + 1, num_columns, dtype=torch.int32, device=device)
        is_own = torch.arange(num_columns) < blocks[:, None]
        order = torch.randperm(num_blocks - 1, dtype=torch.int32) + 1
        self.tables[:num_seqs][is_own.to(device)] = order.to(device)
        lanes = torch.arange(num_seqs, device=device)
        self.rows = DecodeRows(lanes, lengths.to(device), num_columns)
        self.form = AttentionForm(dim**-0.5)
        self.query = torch.randn(num_seqs, heads, dim, device=device, dtype=DTYPE)
        self.key, self.value = (
            torch.randn(num_seqs, kv_heads, dim, device=device, dtype=DTYPE) for _ in range(2)
        )
        self.out = torch.empty_like(self.query)

    def decode_s(self, kernels: Kernels, device: torch.device) -> float:
        """Returns the duration of one layer in seconds."""

        def decode() -> None:
            given = (self.query, self.key, self.value)
            for cache in self.layers:
                layer = LayerPass(*given, cache, self.tables, self.form, self.out)
                kernels.decode(layer, self.rows)

        return seconds_of(recorded(decode, device), device, num_calls=5, num_rounds=3) / len(
            self.layers
        )


def measure(device: torch.device, measures: Measures) -> None:
    ceiling = measures.ceilings(device, DTYPE).bytes_per_s
    kernels = load_kernels("triton" if triton_works() else "torch")
    is_cuda = device.type == "cuda"
    crowds, shapes = ((*EVEN, *UNEVEN), SERVED) if is_cuda else (FEW, ("tiny",))
    for shape, sizes in product(shapes, crowds):
        name = f"{shape} attention, {sizes}"
        if measures.left_s < 5:
            measures.add(name, "no time left")
            continue
        with measures.piece(name):
            crowd = Crowd(shape, sizes, device)
            took_s = crowd.decode_s(kernels, device)
            share = crowd.num_bytes / took_s / ceiling
            summary = f"{share:.0%} of the memory ceiling"
            measures.add(name, summary, seconds=took_s, share_of_memory=share)


def seconds_of(action: Action, device: torch.device, num_calls: int = 10, num_rounds: int = 5) -> float:
    """Returns the median duration of a call in seconds, by the device's clock if it has one."""
    action()
    synchronise(device)
    return median(_round_s(action, device, num_calls) / num_calls for _ in range(num_rounds))


def _round_s(action: Action, device: torch.device, num_calls: int) -> float:
    if device.type != "cuda":
        began = perf_counter()
        for _ in range(num_calls):
            action()
        return perf_counter() - began
    began_event, ended_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began_event.record()
    for _ in range(num_calls):
        action()
    ended_event.record()
    ended_event.synchronize()
    return float(began_event.elapsed_time(ended_event)) / 1000


def recorded(action: Action, device: torch.device) -> Action:
    """Returns the action, on CUDA as the replay of a graph."""
    if device.type != "cuda":
        return action
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        action()
    return graph.replay


if __name__ == "__main__":
    sys.exit(measured(__doc__, "attention", measure))
