"""`-n N` on a machine with several GPUs: each worker sees one of them, in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVERS = ("nvidia*", "nvmap", "kfd", "dxg")  # in /dev: CUDA, CUDA on Tegra, ROCm, either in WSL


def may_have_gpu() -> bool:
    """Returns False only if torch would find none: then the answer needs no import of it."""
    is_known = sys.platform == "linux" and "torch" not in sys.modules
    return not is_known or any(any(Path("/dev").glob(each)) for each in DRIVERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Assigns a GPU to each worker, in the controller and before a worker starts.

    Which GPUs a process can see is settled when it first asks for CUDA, and imports do that. A worker
    that replaces a dead one has the same specification.
    """
    gpus = gpus_for_workers(config)
    for number, spec in enumerate(specs):
        if len(gpus) > 1:
            spec.env = {**(getattr(spec, "env", None) or {}), VISIBLE: gpus[number % len(gpus)]}


def gpus_for_workers(config: pytest.Config) -> list[str]:
    """Returns the GPUs that workers take turns on, as CUDA names them; none if one was asked for by
    number.
    """
    if config.getoption("--device") not in ("auto", "cuda") or not may_have_gpu():
        return []
    cuda = import_module("torch").cuda
    return visible_gpus(cuda.device_count()) if cuda.is_available() else []


def visible_gpus(count: int) -> list[str]:
    """Returns the visible GPUs: those in the environment variable, whose names need not be numbers,
    else one number for each GPU.
    """
    listed = os.environ.get(VISIBLE)
    names = [str(index) for index in range(count)] if listed is None else listed.split(",")
    return [name.strip() for name in names][:count]
