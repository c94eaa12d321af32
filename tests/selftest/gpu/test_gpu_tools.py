"""The tools of `.ci/gpu` detect what they are meant to detect."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from tests.gpu import smoke, versions
from tests.gpu.attention import Crowd, Sizes
from tests.gpu.attention_peers import layer_s, torch_attention
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


def test_what_is_too_old_or_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"pytest": "8.4.2", "hypothesis": None}
    real = versions.installed
    monkeypatch.setattr(versions, "installed", lambda name: found.get(name, real(name)))
    assert versions.main("cpu") == 1
    missing = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MISSING")]
    assert missing == [
        "MISSING: pytest 8.4.2, but must be at least 9",
        "MISSING: hypothesis not installed, but must be at least 6",
    ]


def test_a_compiler_that_does_not_work_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(versions, "run_inductor", lambda device: device.broken)
    why = "AttributeError: 'torch.device' object has no attribute 'broken'"
    assert list(versions.failures(CPU)) == [f"inductor does not work: {why}"]
    assert "Traceback" in capsys.readouterr().out


def test_the_attention_of_others_is_timed_only_if_it_is_right() -> None:
    crowd = Crowd("tiny", Sizes(2, 40), CPU)
    attend, cells = torch_attention(SDPBackend.FLASH_ATTENTION, crowd)
    assert layer_s(crowd, attend, cells) > 0
    with pytest.raises(ArithmeticError, match="of the largest value"):
        layer_s(crowd, attend, cells.flip(0))


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
