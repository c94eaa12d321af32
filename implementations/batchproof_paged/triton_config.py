"""How the Triton kernels iterate over keys: constants by class of device and size of a number.

The constants follow from the compiler's output: no spilled registers, two
buffers each for keys and values where there is room, several programs on a processor at a time.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import torch
import triton

from batchproof_paged.kernels import LayerCache

KIB = 1024


@dataclass(frozen=True, slots=True)
class DecodeSweep:
    """How a program of the decode kernel iterates over its keys."""

    tile_bytes: int = 16 * KIB  # of keys and values at a time
    num_stages: int = 5  # on NVIDIA: keys and values get one buffer each up to 4 stages, two with 5
    num_warps: int = 4
    programs: int = 4  # desired at a time on each processor


@dataclass(frozen=True, slots=True)
class PrefillSweep:
    """How a program of the prefill kernel iterates over its keys, and how many queries it serves."""

    tile_bytes: int = 32 * KIB
    num_stages: int = 2
    max_queries: int = 128  # tokens times heads in a tile
    query_bytes: int = 32 * KIB  # the most that queries may take on chip
    queries_per_warp: int = 16  # within 4 to 8 warps

    def num_warps(self, num_queries: int) -> int:
        """Returns how many warps serve a tile of so many queries."""
        return min(8, max(4, num_queries // self.queries_per_warp))


@dataclass(frozen=True, slots=True)
class Sweeps:
    """The constants of both kernels."""

    decode: DecodeSweep = DecodeSweep()
    prefill: PrefillSweep = PrefillSweep()


# Without TF32, float32 cannot use the tensor cores and needs registers instead.
_WIDE = PrefillSweep(16 * KIB, 2, 64, 32 * KIB, 4)
_NVIDIA = {2: Sweeps(), 4: Sweeps(prefill=_WIDE), 8: Sweeps(DecodeSweep(num_stages=3), _WIDE)}
_ONE_BUFFER = DecodeSweep(num_stages=2)  # of 64 KiB a processor has
_AMD = {
    2: Sweeps(_ONE_BUFFER, PrefillSweep(16 * KIB)),
    4: Sweeps(_ONE_BUFFER, _WIDE),
    8: Sweeps(_ONE_BUFFER, _WIDE),
}
SWEEPS: dict[str, dict[int, Sweeps]] = {
    "sm_80": _NVIDIA | {2: Sweeps(prefill=PrefillSweep(16 * KIB))},  # compute capability 8.x
    "sm_90": _NVIDIA,
    "sm_100": _NVIDIA,  # and later
    "gfx9": _AMD,
    "interpreter": _NVIDIA,
}


def is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def device_class(device: torch.device) -> str:  # noqa: ARG001 - the current one, as for a launch
    """Returns the key of `SWEEPS` for the current device."""
    if is_interpreted():
        return "interpreter"
    target = triton.runtime.driver.active.get_current_target()
    if target.backend == "hip":
        return "gfx9"
    return "sm_80" if target.arch < 90 else "sm_90" if target.arch < 100 else "sm_100"


@cache
def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def sweeps_for(layer: LayerCache) -> Sweeps:
    return SWEEPS[device_class(layer.keys.device)][layer.keys.element_size()]
