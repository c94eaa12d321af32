"""Result files: valid at any moment, complete only at the end, and damage is named."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from batchproof.__main__ import main
from batchproof.bench.benchmark_run import SCHEMA, ResultFile
from batchproof.errors import UsageError
from batchproof.places import ROOT

HEADER = {"clock": "process"}
COMPARISON: dict[str, Any] = {"workload": {"name": "bimodal"}, "clock": "process", "rows": []}


def test_the_file_can_be_read_after_each_addition_and_is_complete_only_at_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.json"
    file = ResultFile(path, HEADER)
    entries = [COMPARISON, COMPARISON | {"clock": "wall"}]
    for number, entry in enumerate(entries, start=1):
        given = copy.deepcopy(entry)
        file.add(given)
        given.clear()  # what was added stays as it was
        written = json.loads(path.read_text())
        assert written == {"schema": SCHEMA, "header": HEADER, "comparisons": entries[:number]}
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.add({"seconds": math.nan})
    assert path.read_bytes() == before
    file.finish()
    assert json.loads(path.read_text())["footer"]["num_comparisons"] == 2
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if '"workload"' in line]
    assert len(lines) == 2, "git shows which comparison changed"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        ResultFile(tmp_path / "missing" / "result.json", HEADER)


RESULT = str(ROOT / "results" / "2026-11-29-cpu-released-tiny.json")


def test_a_picture_says_of_each_engine_how_fast_it_is_or_why_that_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib  # which `requirements.txt` does not have, and collecting must not need

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # words are words
    picture = tmp_path / "tiny.svg"
    assert main(["plot", RESULT, str(picture)]) == 0
    words = picture.read_text()
    for each in ("short_queue on tiny", "4,685 tok/s", "0.59x", "more slots than asked"):
        assert each in words
    capsys.readouterr()
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(json.loads(Path(RESULT).read_text()) | {"comparisons": [{}]}))
    for wrong, said in (
        ([str(damaged), str(picture)], "is damaged: KeyError: 'workload'"),
        ([RESULT, str(tmp_path)], "must end in .png, .svg, .pdf"),
        ([str(ROOT / "results" / "faults.json"), str(picture)], "is no benchmark"),
        ([RESULT, str(tmp_path / "tiny.gif")], "must end in .png, .svg, .pdf"),
    ):
        assert main(["plot", *wrong]) == 2
        assert said in capsys.readouterr().err
