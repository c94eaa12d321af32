"""README, docs and reports agree with the code, and their examples print what they show."""

import re
from pathlib import Path

import pytest

from batchproof.judgement.matrix_page import matrix_page
from batchproof.judgement.output import index_table
from batchproof.places import ROOT
from batchproof.records.matrix import MATRICES, MATRIX
from batchproof.requirements.issues import DEFAULT_ISSUES, read_issues
from batchproof.requirements.promises import Promise
from batchproof_lab.reports_command import FOLDER, pages, read_recording, read_reports, recording_of
from batchproof_lab.suite_run import run_suite
from docs.check_tutorial import TUTORIAL, blocks, is_printed, write

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LINKED = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "cases/README.md", "results/README.md")
] + PAGES
SMALLEST, BATCHING = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/writing_an_engine.md").read_text(), re.DOTALL
)
BROKEN = SMALLEST.replace("[[*request.prompt_token_ids,", "[[*request.prompt_token_ids[-16:],")
STEPS = list(blocks(TUTORIAL.read_text(encoding="utf-8")))


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
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    names = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES} - {"index.md"}
    assert not [name for name in names if f"]({name})" not in index]
    assert not [name for name in names if f"\n{name.removesuffix('.md')}\n" not in index]


def test_the_options_of_the_docs_exist(pytestconfig: pytest.Config) -> None:
    text = (ROOT / "docs/options.md").read_text(encoding="utf-8")
    text += (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    options = {option for cell in cells for option in re.findall(r"--[a-z-]+", cell)}
    assert "--engine" in options
    for option in options:
        pytestconfig.getoption(option)  # raises ValueError if there is none


def test_the_index_of_verdicts_is_that_of_the_files() -> None:
    engines = ROOT / "results" / "engines"
    index = (engines / "README.md").read_text(encoding="utf-8")
    assert index.endswith("\n".join(index_table(engines)) + "\n")


def test_the_pages_of_matrices_are_those_of_their_records() -> None:
    for path in (ROOT / "results" / "engines" / MATRICES).glob("*/matrix.json"):
        page = (path.parent / "README.md").read_text(encoding="utf-8")
        assert page == matrix_page(MATRIX.read(path)), path


def test_a_failure_of_the_tutorial_is_printed_as_the_page_has_it(tmp_path: Path) -> None:
    """The one that the reader meets for its padding; the others need minutes."""
    (shown,) = [each for each in STEPS if each.kind == "console" and "PADDING" in each.text]
    for block in STEPS[: STEPS.index(shown)]:
        if block.kind != "console":
            write(block, tmp_path)
    arguments = ["-x", "-k", "long-row-first", "--model=gpt2-random"]
    printed = run_suite(f"{tmp_path}/padded.py:Engine", arguments).output
    ((_, wanted),) = shown.commands
    assert is_printed(wanted, printed), printed


def test_each_defect_has_a_report_a_script_that_shows_it_and_a_page() -> None:
    reproductions = FOLDER / "reproductions"
    known = read_reports()
    names = {each.name for each in known.reports}
    assert len(names) == len(known.reports)
    for issue in read_issues(DEFAULT_ISSUES):
        assert bool(issue.reports) == (issue.kind == "defect"), issue.title
        assert set(issue.reports) <= names, issue.title
    scripts = [script for each in known.reports for script in each.paths]
    assert [each for each in scripts if not read_recording(each).is_reproduced] == []
    kept = {path.name for path in (reproductions / "outputs").iterdir()}
    assert kept == {recording_of(each).name for each in scripts}
    found = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "reports").iterdir()}
    assert found == pages(known), "run `batchproof lab reports`"
