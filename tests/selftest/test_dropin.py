"""`batchproof dropin`: what is written stands alone, is small, and its answers are right."""

import ast
import json
import subprocess
from pathlib import Path

import pytest

from batchproof import dropin
from batchproof.__main__ import main
from batchproof.dropin import ANSWERS, CHECKPOINT, KINDS, TEST
from batchproof.models.embedded import KNOWN


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_small_and_stands_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropin, "converter", lambda: lambda *paths: ["convert", *map(str, paths)])
    monkeypatch.setattr(subprocess, "run", _converted)
    assert main(["dropin", kind, str(tmp_path / "new")]) == 0
    folder = tmp_path / "new"
    text = (folder / TEST).read_text(encoding="utf-8")
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not [each for each in imported if each and each.startswith("batchproof")]
    assert len(text.splitlines()) <= 50
    assert sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) < 1 << 20
    assert (folder / CHECKPOINT / "config.json").is_file()
    weights = {each.name for each in (folder / CHECKPOINT).glob("model.*")}
    assert weights == {"model.gguf" if kind == "llama.cpp" else "model.safetensors"}
    oracle = KNOWN[KINDS[kind].model].oracle
    assert oracle is not None
    for case in json.loads((folder / ANSWERS).read_text(encoding="utf-8")):
        assert oracle(case["prompt"], len(case["answer"])) == case["answer"]
        assert [int(word[1:]) for word in case["words"]] == case["answer"]


def _converted(words: list[str], **_: object) -> None:
    made = Path(words[2])
    made.mkdir()
    (made / "model.gguf").touch()
