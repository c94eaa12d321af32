"""Runs the shell steps of action.yml on this machine, in order, as GitHub's runner would.

    python .ci/act.py [--temp DIR] [INPUT=VALUE ...]      in the repository that uses the action

Steps that use other actions are named and left out. DIR holds what a runner gives a job: outputs, the
summary (`summary.md`), the event, temporary files. Ends with the status of the first step that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ACTION = Path(__file__).resolve().parents[1]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
REFERENCE = re.compile(r"\b(?:inputs|steps|github|runner)(?:\.[\w-]+)+")


class Job:
    """A job with one step, which uses the action: values by reference, such as `inputs.engine`."""

    def __init__(self, action: dict[str, Any], given: dict[str, str], temp: Path) -> None:
        inputs = {name: str(each.get("default", "")) for name, each in action["inputs"].items()}
        if unknown := given.keys() - inputs.keys():
            raise SystemExit(f"error: no input {', '.join(unknown)}; there are {', '.join(inputs)}")
        self.values = {f"inputs.{name}": value for name, value in (inputs | given).items()}
        self.values["github.token"] = "token"
        self.temp, self.status = temp, 0
        (temp / "event.json").write_text(json.dumps({"pull_request": {"number": 1}}))

    def run(self, step: dict[str, Any]) -> None:
        """Runs a step if its condition holds, and takes over its outputs."""
        condition = step.get("if", "success()")
        if "uses" in step or not self._holds(condition):
            print(f"== {step['name']}: left out ({step.get('uses', condition)})", flush=True)
            return
        print(f"== {step['name']}", flush=True)
        output = self.temp / "output"
        output.write_text("")
        github = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ACTION),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
            "GITHUB_EVENT_PATH": str(self.temp / "event.json"),
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "OWNER/engine",
            "GITHUB_RUN_ID": "1",
            "RUNNER_TEMP": str(self.temp),
        }
        given = {name: self._filled(str(value)) for name, value in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self._filled(step["run"])]
        status = subprocess.run(command, env=os.environ | github | given, check=False).returncode
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            self.values[f"steps.{step.get('id')}.outputs.{name}"] = value
        self.status = self.status or status

    def _filled(self, text: str) -> str:
        return EXPRESSION.sub(lambda found: self.values[found[1]], text)

    def _holds(self, condition: str) -> bool:
        """Evaluates a condition of references, texts, `==`, `!=`, `&&`, `always()` and `success()`."""
        text = REFERENCE.sub(lambda found: repr(self.values.get(found[0], "")), condition)
        names = {"always": lambda: True, "success": lambda: self.status == 0}
        holds = eval(text.replace("&&", " and "), {"__builtins__": {}}, names)
        return bool(holds) and (self.status == 0 or "always()" in condition)


def main() -> int:
    """Runs the steps."""
    parser = argparse.ArgumentParser(description="run the shell steps of action.yml on this machine")
    parser.add_argument("--temp", type=Path, help="folder of the job (default: a new one)")
    parser.add_argument("inputs", nargs="*", metavar="INPUT=VALUE")
    arguments = parser.parse_args()
    temp = (arguments.temp or Path(tempfile.mkdtemp(prefix="act-"))).resolve()
    temp.mkdir(parents=True, exist_ok=True)
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    job = Job(action, dict(each.split("=", 1) for each in arguments.inputs), temp)
    for step in action["runs"]["steps"]:
        job.run(step)
    print(f"== status {job.status}; summary and files in {temp}")
    return job.status


if __name__ == "__main__":
    sys.exit(main())
