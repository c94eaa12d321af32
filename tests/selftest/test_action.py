"""The action, its scripts and the release: whatever can be seen without GitHub."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from typing import Any

import pytest
import yaml

from batchproof import __version__
from batchproof.places import ROOT

SCRIPTS = [
    *(f".ci/{each}" for each in ("run", "gpu", "release")),
    *(f".ci/action/{each}" for each in ("install", "run", "comment")),
]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


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
