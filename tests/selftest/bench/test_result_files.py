"""Result files: valid at any moment, complete only at the end, and damage is named."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from batchproof.bench.benchmark_run import ResultFile
from batchproof.errors import UsageError
from batchproof.records.benchmark import is_complete, load
from tests.selftest.bench import samples

Result = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def test_the_file_can_be_read_after_each_addition_and_is_complete_only_at_the_end(path: Path) -> None:
    result = samples.made()
    file = ResultFile(path)
    assert not path.exists()
    file.write(result["header"])
    assert not is_complete(load(path))
    for part in ("comparisons", "growth"):
        for number, entry in enumerate(result[part], start=1):
            given = copy.deepcopy(entry)
            file.add(part, given)
            given.clear()  # what was added stays as it was
            assert load(path)[part] == result[part][:number]
            assert not is_complete(load(path))
    file.finish()
    read = load(path)
    result["footer"]["finished"] = read["footer"]["finished"]
    assert read == result
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if '"workload"' in line]
    assert len(lines) == len(result["comparisons"]), "git shows which comparison changed"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_is_no_number_is_never_written(path: Path) -> None:
    file = ResultFile(path)
    file.write(samples.header())
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.add("comparisons", samples.comparison() | {"metrics": {"mean_tpot_ms": math.nan}})
    assert path.read_bytes() == before
    file.add("growth", samples.growth())  # what was refused is not kept either
    assert load(path)["comparisons"] == []


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        ResultFile(tmp_path / "missing" / "result.json").write(samples.header())
