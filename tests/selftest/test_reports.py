"""Reports to maintainers: each defect has one, and each is what its data and recordings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.errors import UsageError
from batchproof.requirements.issues import DEFAULT_ISSUES, read_issues
from batchproof_lab import reports_command
from batchproof_lab.reports_command import FOLDER, pages, read_recording, read_reports, recording_of

DATA = FOLDER / "reports.yaml"
SCRIPTS = FOLDER / "reproductions"
SMALL = """
searched_on: a day
libraries:
  toy: {title: Toy, repository: me/toy, packages: [pip], source: its release}
reports:
  - name: toy-is-wrong
    library: toy
    title: It is wrong
    effect: wrong answers
    scripts: [toy.py]
    summary: s
    expected: e
    cause: c
    workaround: w
    searched: toys
"""


def test_each_defect_has_a_report_a_script_that_shows_it_and_a_page() -> None:
    known = read_reports(DATA)
    names = {each.name for each in known.reports}
    for issue in read_issues(DEFAULT_ISSUES):
        assert bool(issue.reports) == (issue.kind == "defect"), issue.title
        assert set(issue.reports) <= names, issue.title
    scripts = [SCRIPTS / script for each in known.reports for script in each.scripts]
    assert [each for each in scripts if not read_recording(each).is_reproduced] == []
    kept = {path.name for path in (SCRIPTS / "outputs").iterdir()}
    assert kept == {recording_of(each).name for each in scripts}
    found = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "reports").iterdir()}
    assert found == pages(known, FOLDER), "run `batchproof lab reports`"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one report, whose script is to be written."""
    (tmp_path / "reproductions").mkdir()
    (tmp_path / "reports.yaml").write_text(SMALL)
    monkeypatch.setattr(reports_command, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("ending", "status", "shown"),
    [
        ("raise SystemExit(1)", 1, "pip "),
        ("raise ValueError", 3, "NOT REPRODUCED"),  # a script that breaks shows nothing
    ],
)
def test_a_script_is_run_and_what_it_prints_is_kept(
    toy: Path, ending: str, status: int, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = toy / "reproductions" / "toy.py"
    script.write_text(f'"""A toy."""\n\nprint("one")\n{ending}\n')
    assert main(["lab", "reports", "--record"]) == (0 if status == 1 else 1)
    assert (read_recording(script).status, read_recording(script).output) == (status, "one\n")
    assert shown in (toy / "reports" / "README.md").read_text()
    page = (toy / "reports" / "toy-is-wrong.md").read_text()
    assert 'print("one")' in page
    assert "A toy" not in page
    assert ("ended with status" in page) == (status != 1)
    script.write_text(script.read_text() + "# changed\n")
    assert main(["lab", "reports"]) == 2
    assert "record it again" in capfd.readouterr().err
    (toy / "reports.yaml").write_text(SMALL.replace("effect: wrong answers", "effect: bad"))
    with pytest.raises(UsageError, match=r"reports\[0\]\.effect"):
        read_reports(toy / "reports.yaml")
