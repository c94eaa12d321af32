"""README and docs agree with the code: commands, counts, promises, links, and engines that pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchproof.cases.files import load_cases
from batchproof.judgement.index import findings_table, index_table
from batchproof.requirements.promises import Promise
from batchproof.run.registry import BY_DEFAULT, faults
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
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def exit_status(source: str, folder: Path) -> int:
    """Runs some tests on the engine in the source, and returns pytest's exit status."""
    (folder / "mine.py").write_text(source)
    chosen = "(test_parity and generated) or (test_bad_input and bad_request)"
    arguments = ["-x", "-k", chosen, "--model=gpt2-random", "--diagnose-for=0"]
    return run_suite(f"{folder}/mine.py:Engine", arguments).exit_status


@pytest.mark.parametrize("source", [SMALLEST, BATCHING], ids=["smallest", "batching"])
def test_the_engines_of_the_docs_pass(source: str, tmp_path: Path) -> None:
    assert exit_status(source, tmp_path) == pytest.ExitCode.OK


def test_the_smallest_engine_broken_in_one_line_fails(tmp_path: Path) -> None:
    broken = SMALLEST.replace("[[*request.prompt_token_ids,", "[[*request.prompt_token_ids[-16:],")
    assert broken != SMALLEST
    assert exit_status(broken, tmp_path) == pytest.ExitCode.TESTS_FAILED


def test_the_smallest_engine_is_as_short_as_the_readme_says() -> None:
    lines = [line for line in SMALLEST.splitlines() if line and "import" not in line]
    assert len(lines) <= 20
    assert "[20 lines are enough]" in README


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 180


def test_the_promises_of_the_readme_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (P\d+) \| (.*) \| (.*) \|$", README, re.MULTILINE)
    assert rows == [(each.id, each.title, each.sentence) for each in Promise]


def test_the_table_of_the_readme_has_all_promises_and_built_in_engines() -> None:
    _, _, rest = README.partition("Batchproof: engine x promise ====")
    head, *rows = rest.partition("```")[0].strip("=\n").splitlines()
    assert set(head.split()) == set(BY_DEFAULT)
    assert [row[:20].strip() for row in rows] == [str(each) for each in Promise]


def test_the_number_of_cases_in_the_readme_is_that_of_the_repository() -> None:
    assert f"**{len(load_cases(REPOSITORY / 'cases'))} curated cases**" in README


def test_the_engine_of_the_readmes_failure_is_planted() -> None:
    (name,) = re.findall(r"--engine=fault:(\w+)", README)
    assert name in faults()


@pytest.mark.parametrize("page", LINKED, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_of_the_site_links_and_lists_every_page() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        name = page.relative_to(REPOSITORY / "docs").as_posix()
        assert f"]({name})" in index or name == "index.md", name
        assert f"\n{name.removesuffix('.md')}\n" in index or name == "index.md", name


def test_the_options_of_the_docs_exist(pytestconfig: pytest.Config) -> None:
    text = (REPOSITORY / "docs/options.md").read_text(encoding="utf-8")
    text += (REPOSITORY / "docs/benchmarks.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    options = {option for cell in cells for option in re.findall(r"--[a-z-]+", cell)}
    assert "--engine" in options
    for option in options:
        pytestconfig.getoption(option)  # raises ValueError if there is none


def test_the_index_of_verdicts_is_that_of_the_files_and_the_readme_counts_them() -> None:
    engines = REPOSITORY / "results" / "engines"
    table = list(index_table(engines))
    index = (engines / "README.md").read_text(encoding="utf-8")
    assert index.endswith("\n".join(table) + "\n")
    found = (engines / "findings.md").read_text(encoding="utf-8")
    assert found.endswith("\n".join(findings_table(engines)) + "\n")
    assert f"{NUMBERS[len(table) - 2]} released configurations" in README
