"""What a result file says of the GPU it was made on; no GPU is needed to test that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchproof.bench.hardware import device_facts
from batchproof.records.benchmark import BENCHMARK
from batchproof.site.benchmarks import facts_of
from batchproof.site.inputs import InputFile
from batchproof.site.tables import Fact
from tests.selftest.bench.samples import made

TWO_GPUS = """\
GPU-1111, 580.65.06, 345 MHz, 1980 MHz, 2619 MHz, 76.12 W, 700.00 W
GPU-2222, 580.65.06, 1755 MHz, 1980 MHz, 3201 MHz, 402.50 W, [N/A]
"""


def facts(monkeypatch: pytest.MonkeyPatch, folder: Path, said: str | None) -> dict[str, Any]:
    """Of the second GPU. `said`: by nvidia-smi; None: there is none."""
    properties = SimpleNamespace(name="Some GPU", total_memory=2**34, uuid="2222")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    if said is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    return device_facts(torch.device("cuda:1"))


def test_clocks_and_power_are_those_of_the_device_and_not_of_its_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = facts(monkeypatch, tmp_path, TWO_GPUS)
    assert found["driver"].startswith("driver 580.65.06, CUDA")
    assert found["clocks"] == {
        "clocks.sm": "1755 MHz",
        "clocks.max.sm": "1980 MHz",
        "clocks.mem": "3201 MHz",
        "power.draw": "402.50 W",
        "power.limit": "[N/A]",
    }


@pytest.mark.parametrize("said", [None, "", "No devices were found\n"])
def test_where_nobody_tells_the_clocks_are_absent(
    said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = facts(monkeypatch, tmp_path, said)
    assert found["clocks"] is None
    assert found["driver"].startswith("driver unknown, CUDA")


def test_the_page_shows_the_clocks_where_they_are_known() -> None:
    result = made()

    def shown() -> list[Fact]:
        return facts_of(InputFile(Path("gpu.json"), BENCHMARK.of(Path("gpu.json"), result), result))

    assert not any("clocks" in fact.name for fact in shown())
    result["header"]["device"]["clocks"] = {"clocks.sm": "1755 MHz", "power.limit": "700.00 W"}
    assert Fact("clocks, when the run began", "clocks.sm 1755 MHz, power.limit 700.00 W") in shown()
