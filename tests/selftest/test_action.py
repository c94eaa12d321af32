"""The action, its scripts, the GitLab template and the release: whatever can be seen without GitHub.

`.ci/act.py` runs the steps here in plain bash; pip, batchproof and gh are stand-ins that write down how
they were called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchproof import __version__
from batchproof.places import ROOT

SCRIPTS = [
    *(f".ci/{each}" for each in ("run", "gpu", "release")),
    *(f".ci/action/{each}" for each in ("install", "run", "comment")),
]
WORKFLOWS = [".ci/templates/gitlab.yml", ".github/workflows/ci.yml", ".github/workflows/release.yml"]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))

# Each argument in brackets, so that a test sees where words end.
STANDIN = """#!/usr/bin/env bash
{ printf '%s' "${0##*/}"; printf ' [%s]' "$@"; echo; } >> "$CALLS"
"""
BATCHPROOF = """
echo "said by the run"
folder=${@: -1}
[ -z "${PAGE:-}" ] || echo "$PAGE" > "${folder#--artifacts=}/summary.md"
exit "${STATUS:-0}"
"""
GH = """
last=${@: -1}
case $* in
  *--paginate*) printf '%s' "${EARLIER:-}"; exit "${GH_STATUS:-0}" ;;
  *) cp "${last#body=@}" "$CALLS.body" ;;
esac
"""


@dataclass(frozen=True)
class Acted:
    status: int
    output: str
    calls: list[str]
    temp: Path

    @property
    def summary(self) -> str:
        return (self.temp / "summary.md").read_text()


Act = Callable[..., Acted]


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Act:
    """`act(*inputs, **environment)` runs the steps of the action with stand-ins."""
    programs = {"python": "", "batchproof": BATCHPROOF, "gh": GH}
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(STANDIN + text)
        path.chmod(0o755)
    calls = tmp_path / "calls"

    def run(*inputs: str, **environment: str) -> Acted:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CALLS", str(calls))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        command = [sys.executable, ROOT / ".ci" / "act.py", "--temp", tmp_path / "job", *inputs]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        made = calls.read_text().splitlines() if calls.exists() else []
        return Acted(ran.returncode, ran.stdout + ran.stderr, made, tmp_path / "job")

    return run


def test_a_failing_run_reaches_summary_comment_and_status(act: Act) -> None:
    acted = act(
        *("engine=mine.py:Engine", "comment=true", "requirements=2026.12", "install=-e '.[fast path]'"),
        "arguments=-n auto -k 'parity or stop' --note=$(touch oops)",
        STATUS="1",
        PAGE="## broken",
    )
    assert acted.status == 1, acted.output
    assert acted.summary == "## broken\n"
    calls = [each for each in acted.calls if not each.startswith("python [-m] [pip] [cache]")]
    assert f"python [-m] [pip] [install] [{ROOT}] [-e] [.[fast path]]" in calls
    (tested,) = (each for each in calls if each.startswith("batchproof"))
    assert tested.startswith(
        "batchproof [test] [mine.py:Engine] [-n] [auto] [-k] [parity or stop] [--note=$(touch] [oops)] "
        "[--requirements=2026.12] [--artifacts="
    )
    assert "[POST]" in calls[-1]
    body = (acted.temp.parent / "calls.body").read_text()
    assert body.startswith("<!-- batchproof: batchproof -->\n## broken\n")
    assert "said by the run" in acted.output


def test_a_later_run_changes_its_own_comment(act: Act) -> None:
    acted = act("comment=true", "name=nightly", PAGE="## fine", EARLIER="71\n72\n")
    assert acted.status == 0, acted.output
    assert "[PATCH] [repos/OWNER/engine/issues/comments/71]" in acted.calls[-1]


def test_a_token_that_may_not_comment_fails_nothing(act: Act) -> None:
    acted = act("comment=true", PAGE="## fine", GH_STATUS="1")
    assert acted.status == 0, acted.output
    assert "::warning::Batchproof could not comment" in acted.output


def test_a_run_that_ends_before_its_tests_shows_the_end_of_its_log(act: Act) -> None:
    acted = act("arguments=", STATUS="2")
    assert acted.status == 2, acted.output
    assert acted.summary == (
        "## Batchproof: ended with status 2 before a test had run\n\n```text\nsaid by the run\n```\n"
    )
    assert [each for each in acted.calls if each.startswith("batchproof [test] [--artifacts=")]


def test_each_reference_of_the_action_is_declared() -> None:
    steps = {each["id"]: each for each in ACTION["runs"]["steps"] if "id" in each}
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert {*re.findall(r"\binputs\.([\w-]+)", text)} == ACTION["inputs"].keys()
    assert {*re.findall(r"\bsteps\.([\w-]+)\.outputs", text)} == steps.keys()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "a value belongs into `env`, where it is no program"
        assert "run" not in step or step["shell"] == "bash"
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_bash(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    assert os.access(ROOT / script, os.X_OK)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--severity=warning", ROOT / script], check=True)


@pytest.mark.parametrize("path", WORKFLOWS)
def test_a_workflow_is_yaml(path: str) -> None:
    assert yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_oldest_versions_allowed_are_those_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    oldest = {each.replace(">=", "==") + ".*" for each in project["dependencies"]}
    assert oldest == {*re.findall(r"[\w-]+==[\d.]+\.\*", workflow)}


def test_the_changelog_knows_the_version() -> None:
    released = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert released[0] == "Unreleased"
    assert released[1] == __version__ or __version__.endswith(".dev0")


def test_a_tag_that_is_not_the_version_is_refused() -> None:
    ran = subprocess.run([ROOT / ".ci/release", "v9"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == f"error: the tag is v9, but __version__ is {__version__}\n"
