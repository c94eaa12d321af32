"""The tools of `.ci/gpu` detect what they are meant to detect."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.gpu import smoke
from tests.gpu.measures import Measures

CPU = torch.device("cpu")


def test_a_section_of_measures_made_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "measures.jsonl"
    for section, figure in (("a", 1), ("b", 2), ("a", 3)):
        with path.open("a") as file:
            file.write('{"section": "cut sh')  # by a kill
        measures = Measures(path, section, CPU, for_s=10)
        with measures.piece("fails"):
            raise ValueError("why\nand more")
        measures.add("figure", "summary", figure=figure)
        assert measures.has_failed
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    figures = [(each["section"], each["figure"]) for each in lines if "figure" in each]
    assert figures == [("b", 2), ("a", 3)]
    headers = [each for each in lines if "schema" in each]
    assert [each["section"] for each in headers] == ["b", "a"]
    assert all({"made", "device"} <= each.keys() for each in headers)
    assert [each["summary"] for each in lines if each.get("name") == "fails"] == [
        "FAILED: ValueError: why"
    ] * 2


@pytest.mark.parametrize("status", [0, 1])
def test_a_rung_passes_only_if_its_tests_do(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke.pytest, "main", lambda *_: status)
    monkeypatch.setattr(smoke, "_build_s", lambda *_: 0.1)
    monkeypatch.setattr(sys, "argv", ["smoke", "cpu", str(tmp_path / "measures.jsonl"), "paged"])
    assert smoke.main() == status


def test_an_engine_that_has_given_up_an_option_fails_its_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(notes=("its layers are not compiled: there is no compiler",))
    spec = SimpleNamespace(factory=lambda *_: slow)
    monkeypatch.setattr(smoke, "resolve_engine", lambda *_: spec)
    with pytest.raises(RuntimeError, match="without some of its options: its layers are not compiled"):
        smoke._build_s("paged", SimpleNamespace(device=CPU))  # type: ignore[arg-type]
