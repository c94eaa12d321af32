"""The limits of the machine, and how near the products of the shapes that are served come to them.

python -m tests.gpu.ceilings cuda measures.jsonl
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import torch
from torch import Tensor, nn

from batchproof.bench.ceilings import Ceilings, measure_ceilings
from batchproof.models.shaped import build_model
from batchproof.models.shapes import SHAPES
from tests.gpu.measures import Measures, measured
from tests.gpu.timing import recorded, seconds_of

SERVED = ("llama-8b", "llama-1b", "qwen3-0.6b")
NUM_ROWS = (1, 8, 64, 256)
BEYOND_CACHES_BYTES = 1 << 28  # the size of the weights that take turns
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
    for shape in SERVED if device.type == "cuda" else ("tiny",):
        for layer, (num_out, num_in) in linears(shape).items():
            if measures.left_s < 5:
                measures.add(f"{shape} {layer}", "no time left")
                continue
            with measures.piece(f"{shape} {layer}"):
                _measure_linear(f"{shape} {layer}", num_out, num_in, ceilings, device, measures)


def linears(shape: str) -> dict[str, tuple[int, int]]:
    """Returns outputs and inputs of a shape's layers, each kind once."""
    model = build_model(SHAPES[shape].config(), torch.device("meta"), DTYPE)
    return {
        name.rpartition(".")[2]: (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def _measure_linear(
    name: str,
    num_out: int,
    num_in: int,
    ceilings: Ceilings,
    device: torch.device,
    measures: Measures,
) -> None:
    weight_bytes = num_out * num_in * DTYPE.itemsize
    num_weights = max(1, min(64, BEYOND_CACHES_BYTES // weight_bytes)) if device.type == "cuda" else 1
    weights = [_random(num_out, num_in, device) for _ in range(num_weights)]
    took_s = {}
    for num_rows in NUM_ROWS:
        rows = _random(num_rows, num_in, device)

        def multiply(rows: Tensor = rows) -> None:
            for weight in weights:
                nn.functional.linear(rows, weight)

        took_s[num_rows] = seconds_of(recorded(multiply, device), device, num_calls=3) / num_weights
    shares = {
        rows: (weight_bytes + rows * (num_out + num_in) * DTYPE.itemsize)
        / seconds
        / ceilings.bytes_per_s
        for rows, seconds in took_s.items()
    }
    summary = ", ".join(f"{n} rows {took_s[n] * 1e6:.1f} us {shares[n]:.0%}" for n in NUM_ROWS)
    figures = {"num_out": num_out, "num_in": num_in, "seconds": took_s, "share_of_memory": shares}
    measures.add(name, summary, **figures)


def _random(num_rows: int, num_columns: int, device: torch.device) -> Tensor:
    return torch.randn(num_rows, num_columns, device=device, dtype=DTYPE)


if __name__ == "__main__":
    sys.exit(measured(__doc__, "ceilings", measure))
