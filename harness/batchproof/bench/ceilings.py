"""The limits of this machine, measured in the same run: bytes moved and matrices multiplied.

With torch's current number of threads. A ceiling is the highest rate that any of torch's kernels
reaches, because one library's kernel can be far from what the processor does: in float32 on an AMD EPYC
with AVX-512, `torch.mm` (MKL) multiplies at less than half the rate of oneDNN.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from time import perf_counter

import torch
from torch.nn import functional

from batchproof.run.devices import synchronise

MIN_ROUNDS, SECONDS_OF_ROUNDS = 3, 0.3
PATIENCE_S = 0.03  # a product this slow is large enough: some CPUs have no fast one in float16


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits of one device in one dtype."""

    copy_bytes_per_s: float  # read and written
    read_bytes_per_s: float
    matmul_flop_per_s: float  # a multiply-add is two operations

    @property
    def bytes_per_s(self) -> float:
        """The memory ceiling: the faster of copying and reading."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)


@dataclass(frozen=True, slots=True)
class _Sizes:
    copy_bytes: int  # far beyond any cache
    matrix: int  # rows and columns, at most
    num_calls: int  # between two clock readings, so that launch overhead does not count


SIZES = {
    "cuda": _Sizes(1 << 30, 8192, 10),
    "mps": _Sizes(1 << 28, 4096, 4),
    "cpu": _Sizes(1 << 28, 1024, 1),
}


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Returns the best of several rounds of each; takes one to two seconds on one CPU thread."""
    sizes = SIZES.get(device.type, SIZES["cpu"])
    source = torch.ones(sizes.copy_bytes // 4, device=device)  # float32
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device, sizes.num_calls)
    read_s = _best_s(source.sum, device, sizes.num_calls)
    return Ceilings(
        copy_bytes_per_s=2 * source.nbytes / copy_s,
        read_bytes_per_s=source.nbytes / read_s,
        matmul_flop_per_s=_matmul_flop_per_s(device, dtype, sizes),
    )


def _matmul_flop_per_s(device: torch.device, dtype: torch.dtype, sizes: _Sizes) -> float:
    """Returns the rate of the fastest kernel at its best size: a CPU may reach it on small matrices."""
    best, size = 0.0, min(256, sizes.matrix)
    while True:
        for multiply in _products(size, device, dtype):
            best_s = _best_s(multiply, device, sizes.num_calls, SECONDS_OF_ROUNDS / 2)
            best = max(best, 2 * size**3 / best_s)
        if size >= sizes.matrix or best_s > PATIENCE_S:
            return best
        size *= 2


def _products(size: int, device: torch.device, dtype: torch.dtype) -> Iterator[Callable[[], object]]:
    """Yields a square product by each library that torch has for it."""
    # Random, because a GPU draws less power and runs faster on zeros.
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    yield lambda: torch.mm(left, right, out=product)
    if device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        in_onednn, weight = left.to_mkldnn(), right.to_mkldnn()
        yield lambda: functional.linear(in_onednn, weight)


def _best_s(
    action: Callable[[], object], device: torch.device, num_calls: int, for_s: float = SECONDS_OF_ROUNDS
) -> float:
    """Returns the seconds of one call in the fastest round, after one uncounted call."""
    action()
    synchronise(device)
    best_s, num_rounds, began = inf, 0, perf_counter()
    while num_rounds < MIN_ROUNDS or perf_counter() - began < for_s:
        start = perf_counter()
        for _ in range(num_calls):
            action()
        synchronise(device)
        best_s = min(best_s, (perf_counter() - start) / num_calls)
        num_rounds += 1
    return best_s
