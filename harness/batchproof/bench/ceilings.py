"""The limits of this machine, measured in the same run: bytes copied and matrices multiplied.

With torch's current number of threads. A copy reads and writes; reading alone can be slightly faster,
so a step that mostly reads can exceed this ceiling by a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import perf_counter

import torch

from batchproof.run.devices import synchronise

MIN_ROUNDS, SECONDS_OF_ROUNDS = 3, 0.3
PATIENCE_S = 0.03  # a product this slow is large enough: some CPUs have no fast one in float16


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits of one device in one dtype."""

    copy_bytes_per_s: float  # read and written
    matmul_flop_per_s: float  # a multiply-add is two operations


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
    """Returns the best of several rounds of each; takes about a second on one CPU thread."""
    sizes = SIZES.get(device.type, SIZES["cpu"])
    source = torch.ones(sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device, sizes.num_calls)
    return Ceilings(2 * sizes.copy_bytes / copy_s, _matmul_flop_per_s(device, dtype, sizes))


def _matmul_flop_per_s(device: torch.device, dtype: torch.dtype, sizes: _Sizes) -> float:
    size = min(256, sizes.matrix)
    while size < sizes.matrix and _matmul_s(size, device, dtype, num_calls=1, for_s=0.0) < PATIENCE_S:
        size *= 2
    return 2 * size**3 / _matmul_s(size, device, dtype, sizes.num_calls, SECONDS_OF_ROUNDS)


def _matmul_s(
    size: int, device: torch.device, dtype: torch.dtype, num_calls: int, for_s: float
) -> float:
    # Random, because a GPU draws less power and runs faster on zeros.
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    return _best_s(lambda: torch.mm(left, right, out=product), device, num_calls, for_s)


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
