"""The Triton kernels, as far as this machine can run them: each mode in a process of its own, because
Triton's mode is fixed when it is imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(*command: str, is_interpreted: bool = False) -> str:
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables["TRITON_INTERPRET"] = "1" if is_interpreted else "0"
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


CASES = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "triton_cases.py"))


@needs_triton
@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="Triton's interpreter needs NumPy below 2.4"
)
def test_the_kernels_are_right_in_tritons_interpreter() -> None:
    run(*CASES, is_interpreted=True)


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_kernels_are_right_on_the_gpu() -> None:
    run(*CASES)
