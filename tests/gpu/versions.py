"""Prints what a run is made on: `python -m tests.gpu.versions cuda`. Exit status 1 if something is
missing that every later step needs."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from batchproof.bench.hardware import device_facts
from batchproof.records.decode import encode
from batchproof.records.provenance import made_now

LEAST = {"pytest": 9, "pytest-benchmark": 5, "pytest-xdist": 3, "hypothesis": 6, "transformers": 5}
OTHERS = ("torch", "triton", "numpy")


def installed(name: str) -> str:
    """Returns the version, or 0 for what is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "0"


def missing(device: torch.device) -> list[str]:
    found = [
        f"{name} is {installed(name)}, but must be at least {least}"
        for name, least in LEAST.items()
        if int(installed(name).partition(".")[0]) < least
    ]
    if device.type == "cuda" and not torch.cuda.is_available():
        found.append("torch sees no CUDA device")
    return found


def main(name: str) -> int:
    device = torch.device(name)
    for each in (*LEAST, *OTHERS):
        print(f"{each}: {installed(each)}")
    print(f"wheels left out: {os.environ.get('WHEELS_LEFT_OUT', '').strip() or 'none'}")
    lines = [f"MISSING: {each}" for each in missing(device)]
    if not lines:
        facts = encode(made_now()) | device_facts(device)
        for key, value in facts.items():
            print(f"{key}: {value}")
    complete = f"complete: torch {torch.__version__} on {name}"
    print("\n".join(lines or [complete]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
