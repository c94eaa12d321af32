"""How the Triton kernels go through keys: constants by class of device and size of a number, and what
measurement found to be better (`triton_tuning`).

The constants rest on what the compiler makes of them (`results/kernels.md`): no spilled register, keys
and values in two buffers each where there is room, several programs on a processor at a time.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import torch
import triton

from batchproof_engines.paged.kernels import LayerCache

KIB = 1024


@dataclass(frozen=True, slots=True)
class DecodeSweep:
    tile_bytes: int = 16 * KIB  # of keys and values at a time
    num_stages: int = 5  # on NVIDIA: up to 4 give keys and values one buffer, 5 give them two
    num_warps: int = 4
    programs: int = 4  # to want at a time on each processor


@dataclass(frozen=True, slots=True)
class PrefillSweep:
    tile_bytes: int = 32 * KIB
    num_stages: int = 2
    max_queries: int = 128  # tokens times heads in a tile
    query_bytes: int = 32 * KIB  # that they may take on chip
    queries_per_warp: int = 16  # there are 4 to 8 warps

    def num_warps(self, num_queries: int) -> int:
        return min(8, max(4, num_queries // self.queries_per_warp))


@dataclass(frozen=True, slots=True)
class Sweeps:
    decode: DecodeSweep = DecodeSweep()
    prefill: PrefillSweep = PrefillSweep()


# Without TF32 the cores for matrices are of no use to float32: it needs registers instead.
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
    if is_interpreted():
        return "interpreter"
    target = triton.runtime.driver.active.get_current_target()
    if target.backend == "hip":
        return "gfx9"
    return "sm_80" if target.arch < 90 else "sm_90" if target.arch < 100 else "sm_100"


@cache
def num_processors(device: torch.device) -> int:
    """1 where there is no GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


Kind = tuple[object, ...]
_TUNED: dict[Kind, Sweeps] = {}


def kind_of(layer: LayerCache) -> Kind:
    """Layers of one kind are swept alike."""
    keys = layer.keys
    return keys.device, keys.dtype, keys.shape[1:], layer.values.shape[3]


def keep(layer: LayerCache, sweeps: Sweeps) -> None:
    """Use these for layers of this kind while the process lives."""
    _TUNED[kind_of(layer)] = sweeps


def is_tuned(layer: LayerCache) -> bool:
    return kind_of(layer) in _TUNED


def sweeps_for(layer: LayerCache) -> Sweeps:
    keys = layer.keys
    return _TUNED.get(kind_of(layer)) or SWEEPS[device_class(keys.device)][keys.element_size()]
