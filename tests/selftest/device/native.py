"""Builds a C++ file with the headers of the installed torch, as a library that torch loads:
`torch.ops.load_library(built_for_torch(source))`.

Nothing of Python's headers is used, so the file says what it offers in `TORCH_LIBRARY` or as
`extern "C"`; pybind's headers alone would take longer than the rest.
"""

from pathlib import Path

import torch

from batchproof_paged.native_build import built

# The headers of torch 2.13 ask for C++20. -O1 compiles as fast as -O0, and runs three times as fast.
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-shared")
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")
TORCH = Path(torch.__file__).parent


def built_for_torch(source: Path) -> Path:
    """Returns the library built from `source`. Raises `NotBuiltError`."""
    headers, libraries = TORCH / "include", TORCH / "lib"
    include = [f"-I{headers}", f"-I{headers / 'torch' / 'csrc' / 'api' / 'include'}"]
    link = [f"-L{libraries}", *LIBRARIES, f"-Wl,-rpath,{libraries}"]
    return built(source, [*FLAGS, *include, *link])
