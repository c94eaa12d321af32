"""Tries what compiles on this machine: a kernel of Triton's, and a graph of inductor's."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

C_COMPILERS = ("gcc", "cc", "clang")
CXX_COMPILERS = ("g++", "c++", "clang++")


def run_triton(device: torch.device) -> None:
    from tests.gpu.tiny_kernel import add_one

    x = torch.zeros(16, device=device)
    add_one[(1,)](x, 16)
    assert x.tolist() == [1.0] * 16, f"the kernel wrote {x.tolist()}, but should be ones"


def run_inductor(device: torch.device) -> None:
    x = torch.zeros(16, device=device)
    found = torch.compile(lambda x: x.cos() + 1)(x)
    assert found.tolist() == [2.0] * 16, f"the graph returns {found.tolist()}, but should be twos"


def lacks(device: torch.device) -> Iterator[str]:
    """Yields what a compiler for the device finds missing."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            yield "Triton is not installed"
        if not (os.environ.get("CC") or any(map(shutil.which, C_COMPILERS))):
            yield f"there is no C compiler ({', '.join(C_COMPILERS)})"
        header = Path(sysconfig.get_path("include")) / "Python.h"
        if not header.exists():
            yield f"there is no {header}"
    elif not (os.environ.get("CXX") or any(map(shutil.which, CXX_COMPILERS))):
        yield f"there is no C++ compiler ({', '.join(CXX_COMPILERS)})"


def failures(device: torch.device) -> Iterator[str]:
    """Yields a sentence for each that does not work, and prints its traceback."""
    tried: dict[str, Callable[[torch.device], None]] = {"inductor": run_inductor}
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
    if device.type == "cuda" or is_interpreted:
        tried["Triton"] = run_triton
    for name, run in tried.items():
        print(f"trying: {name}", flush=True)  # what hangs is the last that is told
        try:
            run(device)
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            first_line = (str(error).strip().splitlines() or [""])[0]
            why = ", ".join(lacks(device)) or "compiler and headers are there"
            yield f"{name} does not work: {why}; {type(error).__name__}: {first_line}"
