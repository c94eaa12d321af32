"""A device without a GPU: `python -m pytest -p tests.selftest.device.straw --device straw ...`.

A forgotten `device=` shows only where the tensors of two devices do not mix: on a machine with
nothing but a CPU it stays invisible. The device of straw (`straw.cpp`) is the CPU's memory under
another name. Torch does not mix it with the CPU's, and what would make the host wait for a GPU is
counted.
"""

from __future__ import annotations

import types
from pathlib import Path

import pytest
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


def counts() -> dict[str, int]:
    """Returns how often the host copied or would have waited, by operation, since `forget_counts`."""
    return dict(torch.ops.straw.counts())


def forget_counts() -> None:
    torch.ops.straw.forget_counts()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counted = ", ".join(f"{what} {times}" for what, times in sorted(counts().items()))
    terminalreporter.write_line(f"{NAME}: {counted or 'nothing counted'}")


make_device()
