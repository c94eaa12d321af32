"""The action, its scripts and the release: whatever can be seen without GitHub."""

from __future__ import annotations

import re
import subprocess
import tomllib

from batchproof import __version__
from batchproof.places import ROOT


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
