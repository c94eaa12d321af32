"""Prints what a run is made on, and tries its compilers: `python -m tests.gpu.versions cuda`. Exit
status 1 if something is missing that every later step needs, or the default engine."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from batchproof.bench.hardware import device_facts
from batchproof.records.provenance import provenance

LEAST = {"pytest": 9, "pytest-benchmark": 5, "pytest-xdist": 3, "hypothesis": 6, "transformers": 5}
OTHERS = ("torch", "triton", "numpy", "flash_attn")


def packages() -> Iterator[tuple[str, object]]:
    yield "python", platform.python_version()
    for name in (*LEAST, *OTHERS):
        yield name, installed(name) or "not installed"
    yield "wheels left out", os.environ.get("WHEELS_LEFT_OUT", "").strip() or "none"


def machine(device: torch.device) -> Iterator[tuple[str, object]]:
    made = provenance()
    yield "commit", made["commit"]
    yield "machine", made["machine"]
    yield from device_facts(device).items()


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def lacks(device: torch.device) -> list[str]:
    found = {name: installed(name) for name in LEAST}
    missing = [
        f"{name} {found[name] or 'not installed'}, but must be at least {least}"
        for name, least in LEAST.items()
        if int((found[name] or "0").partition(".")[0]) < least
    ]
    if device.type == "cuda" and not torch.cuda.is_available():
        missing.append("torch sees no CUDA device")
    return missing


def run_triton(device: torch.device) -> None:
    from tests.gpu.tiny_kernel import add_one

    x = torch.zeros(16, device=device)
    add_one[(1,)](x, 16)
    assert x.tolist() == [1.0] * 16, f"the kernel wrote {x.tolist()}, but should be ones"


def run_inductor(device: torch.device) -> None:
    x = torch.zeros(16, device=device)
    found = torch.compile(lambda x: x.cos() + 1)(x)
    assert found.tolist() == [2.0] * 16, f"the graph returns {found.tolist()}, but should be twos"


def failures(device: torch.device) -> Iterator[str]:
    """Yields a sentence for each that does not work, and prints its traceback."""
    tried: dict[str, Callable[[torch.device], None]] = {"inductor": run_inductor}
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
    if device.type == "cuda" or is_interpreted:
        tried["Triton"] = run_triton
    for name, run in tried.items():
        print(f"trying: {name}", flush=True)  # what hangs is the last that is printed
        try:
            run(device)
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            first_line = (str(error).strip().splitlines() or [""])[0]
            yield f"{name} does not work: {type(error).__name__}: {first_line}"


def main(name: str) -> int:
    device = torch.device(name)
    for key, value in packages():
        print(f"{key}: {value}")
    missing = lacks(device)
    for each in missing:
        print(f"MISSING: {each}")
    if missing:
        return 1
    for key, value in machine(device):
        print(f"{key}: {value}")
    broken = list(failures(device))
    for each in broken:
        print(f"LACKING: {each}")
    if not broken:
        print(f"complete: torch {torch.__version__} on {device_facts(device)['name']}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
