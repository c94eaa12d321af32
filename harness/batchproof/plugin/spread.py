"""`-n N` on a machine with several GPUs: each worker sees one of them, in turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """In the controller, before a worker is started: what a process can see is settled when it first
    asks for CUDA, and imports do. A worker that takes a dead one's place has the same specification."""
    gpus = shared_out(config)
    for number, spec in enumerate(specs):
        if len(gpus) > 1:
            spec.env = {**(getattr(spec, "env", None) or {}), VISIBLE: gpus[number % len(gpus)]}


def shared_out(config: pytest.Config) -> list[str]:
    """The GPUs that workers take turns on, in CUDA's words; none where one was asked for by number."""
    device = config.getoption("--device")
    return visible() if device in ("auto", "cuda") and torch.cuda.is_available() else []


def visible() -> list[str]:
    """As many as there are: of the list in the environment, which may have other names than numbers,
    else by number."""
    count, listed = torch.cuda.device_count(), os.environ.get(VISIBLE)
    names = [str(index) for index in range(count)] if listed is None else listed.split(",")
    return [name.strip() for name in names][:count]


def header(config: pytest.Config) -> list[str]:
    """A line on who has which GPU; none without workers, and none in a worker."""
    num_workers = len(config.getoption("tx", None) or ())
    gpus = shared_out(config)
    if not (num_workers and gpus) or hasattr(config, "workerinput"):
        return []
    shares = [f"gw{number} on {gpus[number % len(gpus)]}" for number in range(num_workers)]
    counts = f"{_counted(num_workers, 'worker')} over {_counted(len(gpus), 'GPU')}"
    return [f"batchproof: {counts}: {', '.join(shares)}"]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
