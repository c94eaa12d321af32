"""A device without a GPU: `python -m pytest -p tests.selftest.device.straw --device straw ...`.

A forgotten `device=` shows only where the tensors of two devices do not mix: on a machine with
nothing but a CPU it stays invisible. The device of straw (`straw.cpp`) is the CPU's memory under
another name, which torch does not mix with the CPU's.
"""

import types
from pathlib import Path

import torch

from tests.selftest.device.native import built_for_torch

NAME = "straw"


def make_device() -> None:
    """Registers the device's name and its module with torch; call it once per process."""
    torch.ops.load_library(built_for_torch(Path(__file__).with_suffix(".cpp")))
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    vars(module).update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        synchronize=lambda _device=None: None,
        # Random numbers are the CPU's.
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _seed: None,
    )
    torch._register_device_module(NAME, module)


make_device()
