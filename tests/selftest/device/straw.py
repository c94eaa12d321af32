"""A device without a GPU: `python -m pytest -p tests.selftest.device.straw --device straw ...`.

A forgotten `device=` shows only where the tensors of two devices do not mix: on a machine with
nothing but a CPU it stays invisible. The device of straw (`straw.cpp`) is the CPU's memory under
another name, which torch does not mix with the CPU's.
"""

import types
from pathlib import Path

import torch

from batchproof_paged.native_build import built

NAME = "straw"
# The headers of torch 2.13 ask for C++20. -O1 compiles as fast as -O0, and runs three times as fast.
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-shared")
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")


def library() -> Path:
    """Returns `straw.cpp`, built with the headers of the installed torch. Raises `NotBuiltError`."""
    torch_root = Path(torch.__file__).parent
    headers, libraries = torch_root / "include", torch_root / "lib"
    include = [f"-I{headers}", f"-I{headers / 'torch' / 'csrc' / 'api' / 'include'}"]
    link = [f"-L{libraries}", *LIBRARIES, f"-Wl,-rpath,{libraries}"]
    return built(Path(__file__).with_suffix(".cpp"), [*FLAGS, *include, *link])


def make_device() -> None:
    """Registers the device's name and its module with torch; call it once per process."""
    torch.ops.load_library(library())
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
