"""Prints what a run is made on, and tries its compiler: `python -m tests.gpu.versions cuda`. Exit
status 1 if something is missing that every later step needs, or the default engine."""

import os
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version

import torch

from batchproof.bench.hardware import device_facts
from batchproof.records.provenance import provenance

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


def why_no_compiler(device: torch.device) -> str:
    """Returns why inductor, which on CUDA needs Triton, compiles nothing here, and prints its
    traceback; empty if it works."""
    print("trying: inductor", flush=True)  # it may hang
    try:
        found = torch.compile(lambda x: x.cos() + 1)(torch.zeros(16, device=device))
        assert found.tolist() == [2.0] * 16, f"the graph returns {found.tolist()}, but should be twos"
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        first_line = (str(error).strip().splitlines() or [""])[0]
        return f"inductor does not work: {type(error).__name__}: {first_line}"
    return ""


def main(name: str) -> int:
    device = torch.device(name)
    for each in (*LEAST, *OTHERS):
        print(f"{each}: {installed(each)}")
    print(f"wheels left out: {os.environ.get('WHEELS_LEFT_OUT', '').strip() or 'none'}")
    lines = [f"MISSING: {each}" for each in missing(device)]
    if not lines:
        facts = provenance() | device_facts(device)
        for key, value in facts.items():
            print(f"{key}: {value}")
        why = why_no_compiler(device)
        lines = [f"LACKING: {why}"] if why else []
    complete = f"complete: torch {torch.__version__} on {name}"
    print("\n".join(lines or [complete]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
