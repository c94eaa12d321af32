"""Reports to maintainers: each defect has one, and each is what its data and recordings say."""

from __future__ import annotations

from batchproof.requirements.issues import DEFAULT_ISSUES, read_issues
from batchproof_lab.reports_command import FOLDER, pages, read_recording, read_reports, recording_of
from batchproof_lab.standalone import standalone

DATA = FOLDER / "reports.yaml"
SCRIPTS = FOLDER / "reproductions"


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


def test_a_script_and_its_set_ups_are_one_file() -> None:
    text = standalone(SCRIPTS / "ctranslate2_one_token_prompt_spoils_its_batch.py")
    compile(text, "one file", "exec")
    assert text.startswith("import sys\nimport tempfile\n\nimport ctranslate2\n")
    assert "setup_" not in text
    places = [
        text.index(each) for each in ("def tiny(", "def greedy(", "right = greedy(model, prompt, 8)")
    ]
    assert places == sorted(places)
