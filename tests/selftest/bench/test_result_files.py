"""Result files: valid at any moment, complete only at the end, and damage is named."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from batchproof.bench.benchmark_run import ResultFile
from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.records.benchmark import BENCHMARK

HEADER = {
    "made": {"machine": {"cpu": "Some CPU", "cores": 2}, "versions": {"python": "3.11.9"}},
    "device": {"type": "cpu", "name": "Some CPU"},
    "clock": "process",
}
COMPARISON: dict[str, Any] = {
    "workload": {"name": "bimodal", "hash": "0" * 12, "spec": {"slots": 8}, "totals": {}},
    "model": {"name": "tiny", "dtype": "float32"},
    "clock": "process",
    "rows": [],
    "ratios": [],
}


def test_the_file_can_be_read_after_each_addition_and_is_complete_only_at_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.json"
    file = ResultFile(path)
    assert not path.exists()
    file.write(HEADER)
    entries = [COMPARISON, COMPARISON | {"clock": "wall"}]
    for number, entry in enumerate(entries, start=1):
        given = copy.deepcopy(entry)
        file.add(given)
        given.clear()  # what was added stays as it was
        assert json.loads(path.read_text())["comparisons"] == entries[:number]
        assert BENCHMARK.read(path).footer is None
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.add({"seconds": math.nan})
    assert path.read_bytes() == before
    file.finish()
    footer = BENCHMARK.read(path).footer
    assert footer is not None
    assert footer.num_comparisons == 2
    assert json.loads(path.read_text())["header"] == HEADER
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if '"workload"' in line]
    assert len(lines) == 2, "git shows which comparison changed"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        ResultFile(tmp_path / "missing" / "result.json").write(HEADER)


def test_the_files_that_the_docs_cite_can_be_read() -> None:
    paths = [*(ROOT / "results").glob("20*-cpu-*.json")]
    assert sum(BENCHMARK.read(path).footer is not None for path in paths) >= 20
