"""What a run is made on, a line each: `python -m tests.gpu.versions cuda`. Exit status 1 if something
that every later step needs is not there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from harness.bench.environment import device_facts
from harness.provenance import provenance

LEAST = {"pytest": 9, "pytest-benchmark": 5, "pytest-xdist": 3, "hypothesis": 6, "transformers": 5}
OTHERS = ("torch", "triton", "numpy", "flash_attn")
COMPILERS = ("gcc", "cc")  # Triton and inductor compile what they launch kernels with


def facts(device: torch.device) -> Iterator[tuple[str, object]]:
    made = provenance()
    yield "commit", made["commit"]
    yield "machine", made["machine"]
    yield "python", made["versions"]["python"]
    for name in (*LEAST, *OTHERS):
        yield name, installed(name) or "not installed"
    yield "compiler", next(filter(None, map(shutil.which, COMPILERS)), "none: Triton needs one")
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


def main(name: str) -> int:
    device = torch.device(name)
    missing = lacks(device)
    seen = device if not missing else torch.device("cpu")
    told = {key: value for key, value in facts(seen) if value is not None}
    for key, value in told.items():
        print(f"{key}: {value}")
    for each in missing:
        print(f"MISSING: {each}")
    if not missing:
        print(f"complete: {told['name']}, torch {told['torch']}, transformers {told['transformers']}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
