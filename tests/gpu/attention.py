"""The share of the memory ceiling that decode attention reaches, with the chosen and other constants.

python -m tests.gpu.attention cuda measures.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from batchproof.bench.ceilings import measure_ceilings
from batchproof.models.shapes import SHAPES
from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import (
    DecodeRows,
    Kernels,
    LayerCache,
    LayerPass,
    load_kernels,
    triton_works,
)
from tests.gpu.ceilings import BEYOND_CACHES_BYTES, DTYPE, SERVED
from tests.gpu.measures import Measures, measured
from tests.gpu.timing import recorded, seconds_of

BLOCK_SIZE = 16
NUM_BEST = 3


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


SWEPT = Sizes(64, 1024), Sizes(8, 1024), Sizes(1, 1024)
UNEVEN = Sizes(64, 128, 4096), Sizes(64, 128, 4096, 8192), Sizes(64, 1024, None, 8192)
CROWDS = *SWEPT, Sizes(256, 1024), Sizes(64, 4096), *UNEVEN
FEW = (Sizes(2, 40), Sizes(3, 1, 40, 8))


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of a launch; None leaves the choice to the kernels."""

    num_stages: int | None = None
    tile_factor: int = 1
    num_splits: int | None = None
    num_warps: int | None = None

    def __str__(self) -> str:
        stages, splits, warps = (
            each or "chosen" for each in (self.num_stages, self.num_splits, self.num_warps)
        )
        return f"stages {stages}, tile x{self.tile_factor}, splits {splits}, warps {warps}"

    @contextmanager
    def in_force(self) -> Iterator[None]:
        if self == AS_CHOSEN:  # of any set; the others are Triton's
            yield
            return
        module: Any = import_module("batchproof_paged.triton_decode")
        tile_for, num_splits, factor = module.tile_for, self.num_splits, self.tile_factor
        with ExitStack() as stack:
            if factor > 1:
                larger: Callable[..., int] = lambda *given: factor * tile_for(*given)  # noqa: E731
                stack.enter_context(patch.object(module, "tile_for", larger))
            if num_splits is not None:
                splits = module.Splits(num_splits)
                stack.enter_context(patch.object(module, "splits_for", lambda *_: splits))
            chosen = {"num_stages": self.num_stages, "num_warps": self.num_warps}
            changed = {name: value for name, value in chosen.items() if value is not None}
            if changed:
                kernel = _Launched(module._decode_kernel, changed)
                stack.enter_context(patch.object(module, "_decode_kernel", kernel))
            yield


class _Launched:
    """Wraps a kernel so that it is launched with other options."""

    def __init__(self, kernel: Any, changed: dict[str, int]) -> None:
        self._kernel = kernel
        self._changed = changed

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        launch = self._kernel[grid]
        return lambda *given, **options: launch(*given, **{**options, **self._changed})


AS_CHOSEN, UNDIVIDED = Constants(), Constants(num_splits=1)
SWEEP = tuple(Constants(*each) for each in product((3, 5), (1, 2), (None, 4), (1, 2, 4)))


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
    ceiling = measure_ceilings(device, DTYPE).bytes_per_s
    kernels = load_kernels("triton" if triton_works() else "torch")
    is_cuda = device.type == "cuda"
    sweep = SWEEP if is_cuda else SWEEP[5:6]
    shapes = SERVED if is_cuda else ("tiny",)
    for shape, crowd in product(shapes, CROWDS if is_cuda else FEW):
        ways = (AS_CHOSEN, UNDIVIDED) if crowd in UNEVEN and triton_works() else (AS_CHOSEN,)
        _measure_crowd(shape, crowd, ways, kernels, ceiling, device, measures)
    if triton_works():
        for crowd, shape in product(SWEPT if is_cuda else FEW, shapes):
            ways = AS_CHOSEN, *sweep
            _measure_crowd(shape, crowd, ways, kernels, ceiling, device, measures, ", swept")


def _measure_crowd(
    shape: str,
    sizes: Sizes,
    ways: tuple[Constants, ...],
    kernels: Kernels,
    ceiling: float,
    device: torch.device,
    measures: Measures,
    suffix: str = "",
) -> None:
    name = f"{shape} attention, {sizes}{suffix}"
    with measures.piece(name):
        crowd = Crowd(shape, sizes, device)
        shares, failed = {}, {}
        for constants in ways:
            if measures.left_s < 5:
                break
            try:
                with constants.in_force():
                    took_s = crowd.decode_s(kernels, device)
            except Exception as error:  # usually, it needs more shared memory than there is
                failed[str(constants)] = f"{type(error).__name__}: {str(error)[:80]}"
                if constants == AS_CHOSEN:
                    raise
                continue
            shares[str(constants)] = crowd.num_bytes / took_s / ceiling
        if not shares:
            measures.add(name, "no time left")
            return
        best = sorted(shares, key=lambda each: -shares[each])[:NUM_BEST]
        summary = f"{shares[str(AS_CHOSEN)]:.0%} of the memory ceiling"
        if len(shares) > 1:
            summary += "; best " + "; ".join(f"{shares[each]:.0%} with {each}" for each in best)
        seconds = crowd.num_bytes / shares[str(AS_CHOSEN)] / ceiling
        measures.add(name, summary, seconds=seconds, share_of_memory=shares, failed=failed)


if __name__ == "__main__":
    sys.exit(measured(__doc__, "attention", measure))
