"""The tools of `.ci/gpu` detect what they are meant to detect."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.gpu import smoke

CPU = torch.device("cpu")


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
