"""Where a result comes from: date, command, machine, versions, commit."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.campaign.crew import num_cores
from harness.campaign.modules import ROOT

PACKAGES = ("torch", "transformers", "hypothesis", "pytest")


def provenance() -> dict[str, Any]:
    """Ready for JSON. Of a machine only what a speed depends on, never its name."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "harness", *sys.argv[1:]]),
        "machine": {"cpu": _cpu(), "cores": num_cores()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def as_lines(made: dict[str, Any]) -> list[str]:
    """The same as a list in Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    return [
        f"* made by `{made['command']}` on {made['date']}",
        f"* machine: {made['machine']['cores']} cores of {made['machine']['cpu']}",
        f"* versions: {versions}",
        f"* commit: {made['commit']}",
    ]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str:
    """It says so if the checkout differs from it; the results themselves do not count."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    is_dirty = _git("status", "--porcelain", "--", ".", ":!results")
    return f"{commit} with uncommitted changes" if is_dirty else commit


def _git(*arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
