"""Prints what a run is made on, and tries its compiler: `python -m tests.gpu.versions cuda`. Exit
status 1 if something is missing that every later step needs, or the default engine."""

import os
import platform
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

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
    for key, value in packages():
        print(f"{key}: {value}")
    missing = lacks(device)
    for each in missing:
        print(f"MISSING: {each}")
    if missing:
        return 1
    for key, value in machine(device):
        print(f"{key}: {value}")
    why = why_no_compiler(device)
    if why:
        print(f"LACKING: {why}")
    else:
        print(f"complete: torch {torch.__version__} on {device_facts(device)['name']}")
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
