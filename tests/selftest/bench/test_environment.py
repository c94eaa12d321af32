"""What a result file says of the GPU it was made on; no GPU is needed to test that."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from batchproof.bench.hardware import device_facts

TWO_GPUS = """\
GPU-1111, 580.65.06, 345 MHz, 1980 MHz, 2619 MHz, 76.12 W, 700.00 W
GPU-2222, 580.65.06, 1755 MHz, 1980 MHz, 3201 MHz, 402.50 W, [N/A]
"""


def test_clocks_and_power_are_those_of_the_device_and_not_of_its_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the second GPU."""
    properties = SimpleNamespace(name="Some GPU", total_memory=2**34, uuid="2222")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{TWO_GPUS}END\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = device_facts(torch.device("cuda:1"))
    assert found["driver"].startswith("driver 580.65.06, CUDA")
    values = ["1755 MHz", "1980 MHz", "3201 MHz", "402.50 W", "[N/A]"]
    assert list(found["clocks"].values()) == values
