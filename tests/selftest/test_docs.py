"""The tutorial can be followed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from batchproof_lab.suite_run import run_suite
from docs.check_tutorial import TUTORIAL, blocks, differs, write

STEPS = list(blocks(TUTORIAL.read_text(encoding="utf-8")))
CONSOLES = [each for each in STEPS if each.kind == "console"]


def test_every_block_of_the_tutorial_is_code_and_every_command_one_of_ours(tmp_path: Path) -> None:
    for block in STEPS:
        if block.kind != "console":
            file = write(block, tmp_path)
            text = file.read_text(encoding="utf-8")
            compile(text, file.name, "exec") if file.suffix == ".py" else tomllib.loads(text)
        for command, wanted in block.commands:
            assert command[:2] == ["batchproof", "test"], block.line
            engine = command[2].partition(":")[0]
            assert (tmp_path / engine).exists() or engine == "-k", block.line
            assert set(wanted) > {"..."}, block.line


def test_a_failure_of_the_tutorial_is_printed_as_the_page_has_it(tmp_path: Path) -> None:
    """The one that the reader meets for its padding; the others need minutes."""
    (shown,) = [each for each in CONSOLES if "PADDING" in each.text]
    for block in STEPS[: STEPS.index(shown)]:
        if block.kind != "console":
            write(block, tmp_path)
    arguments = ["-x", "-k", "long-row-first", "--model=gpt2-random"]
    printed = run_suite(f"{tmp_path}/padded.py:Engine", arguments).output
    ((_, wanted),) = shown.commands
    assert differs(wanted, printed.splitlines()) is None, printed


@pytest.mark.parametrize(
    ("wanted", "printed", "difference"),
    [
        (["a", "...", "c"], ["a", "b", "c"], None),
        (["=== 1 passed in 1.50s ==="], ["==== 1 passed in 70.21s (0:01:10) ===="], None),
        (["...", "b", "c"], ["b", "x", "c"], "c"),
        (["a"], ["a", "b"], "the end, but 'b' follows"),
    ],
)
def test_a_line_that_is_not_printed_is_named(
    wanted: Sequence[str], printed: Sequence[str], difference: str | None
) -> None:
    assert differs(wanted, printed) == difference
