"""The README tells the truth: its engine passes, its counts and its promises are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchproof.campaign.suite_run import run_suite
from batchproof.cases.files import load_cases
from batchproof.judgement.index import index_table
from batchproof.promises import Promise
from batchproof.run.registry import faults

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run_example(tmp_path: Path, source: str) -> int:
    (tmp_path / "mine.py").write_text(source)
    arguments = ["-k", "smoke or generated or bad_request", "--model=gpt2-random"]
    return run_suite(f"{tmp_path}/mine.py:Engine", arguments).exit_status


def test_the_engine_of_the_readme_passes_in_under_thirty_lines(tmp_path: Path) -> None:
    assert len(EXAMPLE.splitlines()) < 30
    assert run_example(tmp_path, EXAMPLE) == pytest.ExitCode.OK


def test_the_engine_of_the_readme_broken_in_one_line_fails(tmp_path: Path) -> None:
    broken = EXAMPLE.replace("[[*request.prompt_token_ids,", "[[*request.prompt_token_ids[-16:],")
    assert broken != EXAMPLE
    assert run_example(tmp_path, broken) == pytest.ExitCode.TESTS_FAILED


def test_the_promises_of_the_readme_are_those_of_the_code() -> None:
    for promise in Promise:
        assert f"| {promise.id} | {promise.title} | {promise.sentence} |" in README


def test_the_counts_of_the_readme_are_those_of_the_repository() -> None:
    assert f"{len(faults())} lying engines" in README
    assert f"{len(load_cases(REPOSITORY / 'cases'))} curated cases" in README


def test_every_file_the_readme_links_exists() -> None:
    for target in re.findall(r"\]\(([^)h][^)]*)\)", README):
        assert (REPOSITORY / target).exists(), target


def test_the_verdicts_of_the_readme_are_those_that_are_kept() -> None:
    _, _, told = README.partition("<!-- verdicts -->\n")
    table = told.partition("<!-- end of verdicts -->")[0].strip().splitlines()
    assert table == list(index_table(REPOSITORY / "results" / "engines", "results/engines/"))
