"""`batchproof dropin`: what is written stands alone, is small, and its answers are right."""

import ast
import json
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.dropin import ANSWERS, CHECKPOINT, KINDS, MODEL, TEST
from batchproof.models.embedded import KNOWN


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_small_and_stands_alone(kind: str, tmp_path: Path) -> None:
    assert main(["dropin", kind, str(tmp_path / "new")]) == 0
    folder = tmp_path / "new"
    text = (folder / TEST).read_text(encoding="utf-8")
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not [each for each in imported if each and each.startswith("batchproof")]
    assert len(text.splitlines()) <= 40
    assert sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) < 1 << 20
    assert (folder / CHECKPOINT / "config.json").is_file()
    oracle = KNOWN[MODEL].oracle
    assert oracle is not None
    for case in json.loads((folder / ANSWERS).read_text(encoding="utf-8")):
        assert oracle(case["prompt"], len(case["answer"])) == case["answer"]
        assert [int(word[1:]) for word in case["words"]] == case["answer"]


def test_a_full_folder_and_an_unknown_kind_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").touch()
    assert main(["dropin", "openai", str(tmp_path)]) == 2
    assert "holds something already" in capsys.readouterr().err
    assert main(["dropin", "sglang", str(tmp_path / "new")]) == 2
    assert "'sglang' is unknown; choose one of vllm, openai" in capsys.readouterr().err
