"""The limits of the machine.

python -m tests.gpu.ceilings cuda measures.jsonl
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import torch

from batchproof.bench.ceilings import measure_ceilings
from tests.gpu.measures import Measures, measured

SERVED = ("llama-8b", "llama-1b", "qwen3-0.6b")
DTYPE = torch.bfloat16


def measure(device: torch.device, measures: Measures) -> None:
    with measures.piece("ceilings"):
        ceilings = measure_ceilings(device, DTYPE)
        summary = (
            f"{ceilings.copy_bytes_per_s / 1e9:.0f} GB/s copied, "
            f"{ceilings.read_bytes_per_s / 1e9:.0f} read, "
            f"{ceilings.matmul_flop_per_s / 1e12:.1f} TFLOP/s"
        )
        measures.add("ceilings", summary, **asdict(ceilings))


if __name__ == "__main__":
    sys.exit(measured(__doc__, "ceilings", measure))
