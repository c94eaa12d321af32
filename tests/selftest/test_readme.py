"""README and docs agree with the code: promises, options, links, and engines that pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchproof.judgement.output import index_table
from batchproof.requirements.promises import Promise
from batchproof_lab.suite_run import run_suite

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
LINKED = [
    REPOSITORY / name
    for name in ("README.md", "CONTRIBUTING.md", "cases/README.md", "results/README.md")
] + PAGES
SMALLEST, BATCHING = re.findall(
    r"```python\n(.*?)```", (REPOSITORY / "docs/writing_an_engine.md").read_text(), re.DOTALL
)


BROKEN = SMALLEST.replace("[[*request.prompt_token_ids,", "[[*request.prompt_token_ids[-16:],")


@pytest.mark.parametrize(
    ("source", "exit_status"),
    [
        (SMALLEST, pytest.ExitCode.OK),
        (BATCHING, pytest.ExitCode.OK),
        (BROKEN, pytest.ExitCode.TESTS_FAILED),
    ],
    ids=["smallest", "batching", "broken in one line"],
)
def test_the_engines_of_the_docs_pass(source: str, exit_status: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(source)
    chosen = "(test_parity and generated) or (test_bad_input and bad_request)"
    arguments = ["-x", "-k", chosen, "--model=gpt2-random", "--diagnose-for=0"]
    assert run_suite(f"{tmp_path}/mine.py:Engine", arguments).exit_status == exit_status


def test_the_promises_of_the_readme_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (P\d+) \| (.*) \| (.*) \|$", README, re.MULTILINE)
    assert rows == [(each.id, each.title, each.sentence) for each in Promise]


def test_every_link_leads_to_a_file_and_a_heading_and_the_index_has_every_page() -> None:
    for page in LINKED:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", text):
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f"{page.name}: {target}"
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if anchor else []
            anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert not anchor or anchor in anchors, f"{page.name}: {target}#{anchor}"
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    names = {page.relative_to(REPOSITORY / "docs").as_posix() for page in PAGES} - {"index.md"}
    assert not [name for name in names if f"]({name})" not in index]
    assert not [name for name in names if f"\n{name.removesuffix('.md')}\n" not in index]


def test_the_options_of_the_docs_exist(pytestconfig: pytest.Config) -> None:
    text = (REPOSITORY / "docs/options.md").read_text(encoding="utf-8")
    text += (REPOSITORY / "docs/benchmarks.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    options = {option for cell in cells for option in re.findall(r"--[a-z-]+", cell)}
    assert "--engine" in options
    for option in options:
        pytestconfig.getoption(option)  # raises ValueError if there is none


def test_the_index_of_verdicts_is_that_of_the_files() -> None:
    engines = REPOSITORY / "results" / "engines"
    index = (engines / "README.md").read_text(encoding="utf-8")
    assert index.endswith("\n".join(index_table(engines)) + "\n")
