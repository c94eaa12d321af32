"""Result files: valid at any moment, complete only at the end, and damage is named."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from batchproof.bench.benchmark_run import ResultFile
from batchproof.bench.reading import is_complete, load
from batchproof.errors import UsageError
from batchproof.records.benchmark import BENCHMARK
from tests.selftest.bench import samples

Result = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def test_what_is_written_is_what_is_read(path: Path) -> None:
    result = samples.made()
    file = ResultFile(path)
    file.write(result["header"])
    for each in result["comparisons"]:
        file.add("comparisons", each)
    for each in result["growth"]:
        file.add("growth", each)
    file.finish()
    read = load(path)
    result["footer"]["finished"] = read["footer"]["finished"]
    assert read == result


def test_the_file_can_be_read_after_each_addition_and_is_complete_only_at_the_end(path: Path) -> None:
    file = ResultFile(path)
    assert not path.exists()
    file.write(samples.header())
    assert not is_complete(load(path))
    counts = {"comparisons": 0, "growth": 0}
    for part, entry in (
        ("comparisons", samples.comparison()),
        ("growth", samples.growth()),
        ("comparisons", samples.comparison("uniform")),
    ):
        file.add(part, entry)
        counts[part] += 1
        read = load(path)
        assert {name: len(read[name]) for name in counts} == counts
        assert not is_complete(read)
    file.finish()
    footer = load(path)["footer"]
    assert {name: footer[f"num_{name}"] for name in counts} == counts
    file.finish()
    assert load(path)["footer"] == footer
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_written(path: Path, bad: float) -> None:
    file = ResultFile(path)
    file.write(samples.header())
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.add("comparisons", samples.comparison() | {"metrics": {"mean_tpot_ms": bad}})
    assert path.read_bytes() == before
    file.add("growth", samples.growth())  # what was refused is not kept either
    assert load(path)["comparisons"] == []


def test_what_is_changed_after_it_was_added_stays_as_it_was(path: Path) -> None:
    entry = samples.comparison()
    file = ResultFile(path)
    file.write(samples.header())
    file.add("comparisons", entry)
    entry["rows"].clear()
    file.finish()
    assert len(load(path)["comparisons"][0]["rows"]) == 2


@pytest.mark.parametrize("place", ["missing/result.json", "."])
def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path, place: str) -> None:
    target = tmp_path / place
    with pytest.raises(UsageError, match="cannot be written"):
        ResultFile(target).write(samples.header())


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ((), {"header": None}, "header"),
        (("comparisons", 1, "workload"), {"hash": None}, "comparisons[1].workload.hash"),
        (("comparisons", 0), {"clock": "moon"}, "comparisons[0].clock is 'moon'"),
        (("comparisons", 0, "rows", 1, "rounds", 2), {"wall_s": "1.0"}, "rounds[2].wall_s is '1.0'"),
        (("comparisons", 0, "rows", 0, "rounds", 0), {"process_s": True}, "rounds[0].process_s"),
        (("comparisons", 0, "rows", 0), {"verdict": "FINE"}, "verdict is 'FINE', not one of INVALID"),
    ],
)
def test_damage_is_said_with_its_place(
    path: Path, place: tuple[str | int, ...], value: Result, words: str
) -> None:
    result = part = samples.made()
    for key in place:
        part = part[key]  # type: ignore[index]
    part.update(value)
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        load(samples.saved(path, result))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no result file: it is not JSON"),
        (b'{"schema": NaN}', "NaN is no JSON"),
        (b"{}", f"its schema is None, not '{BENCHMARK.schema}'"),
        (b'{"schema": "batchproof.conformance/1"}', "its schema is 'batchproof.conformance/1', not"),
        (b'{"schema": "batchproof.benchmark/4"}', "this version of Batchproof reads up to"),
        (b'{"schema": "batchproof.benchmark/3"}', "it has no 'header'"),
        (b'{"schema": "batchproof.benchmark/2"}', "its schema is 'batchproof.benchmark/2', not"),
    ],
)
def test_what_is_no_result_file_is_a_usage_error(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_further_keys_are_welcome(path: Path) -> None:
    result = samples.made() | {"note": "made by hand"}
    assert load(samples.saved(path, result)) == result


def test_each_entry_of_a_list_is_a_line_of_the_file(path: Path) -> None:
    """So that git shows which comparison changed."""
    file = ResultFile(path)
    file.write(samples.header())
    file.add("comparisons", samples.comparison())
    file.add("comparisons", samples.comparison("uniform"))
    file.finish()
    lines = path.read_text(encoding="utf-8").splitlines()
    entries = [json.loads(each.rstrip("],")) for each in lines if '"workload"' in each]
    assert [each["workload"]["name"] for each in entries] == ["bimodal", "uniform"]
