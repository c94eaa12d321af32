"""What people know about an engine's failures: the cause, the public thread, whether it is meant to be.

A suite sees that an answer is wrong; why, and whether its maker says so in the documentation, a person
finds out. That is written down once, in `results/engines/findings.yaml`, a list of

    - engine: openvino-genai 2026   how the release's name and version begin
      title: Cap 0 means no limit   a sentence, the heading in the verdict
      kind: documented              or defect
      tests: ["cap of zero"]        regular expressions, one found in a failed test's id; or left out
      words: ["was answered with"]  and one in the first line that it told, for a test may fail for
                                    something else; []: it was found without the suite
      workload: ["max_new_tokens: 0"] and one in the workload that it printed; may be left out
      cause: ...                    why it happens, with its source
      threads: [https://...]        where it is known in public; may be left out
      script: reproductions/x.py    shows it without the suite, beside that file; may be left out

A failure belongs to the first of its engine that fits. What is documented breaks no promise: the
verdict tells it as a convention that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.wording.failures import WORKLOAD

DEFAULT_FINDINGS = ROOT / "results" / "engines" / "findings.yaml"
KINDS = ("defect", "documented")
REQUIRED = {"engine": str, "title": str, "kind": str, "words": list, "cause": str}
OPTIONAL = {"tests": list, "workload": list, "threads": list, "script": str}


@dataclass(frozen=True)
class Finding:
    """`script`: an absolute path."""

    engine: str
    title: str
    kind: str
    tests: tuple[re.Pattern[str], ...]
    words: tuple[re.Pattern[str], ...]
    workload: tuple[re.Pattern[str], ...]
    cause: str
    threads: tuple[str, ...] = ()
    script: Path | None = None

    @property
    def is_documented(self) -> bool:
        return self.kind == "documented"

    def fits(self, entry: dict[str, Any]) -> bool:
        """A line of the journal."""
        first_line, _, others = entry.get("told", "").partition("\n")
        workload = others.partition(WORKLOAD)[2]
        is_there = not self.tests or any(each.search(entry["test"]) for each in self.tests)
        is_given = not self.workload or any(each.search(workload) for each in self.workload)
        return is_there and is_given and any(each.search(first_line) for each in self.words)


def findings_of(release: str | None, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(each for each in findings if release and release.startswith(each.engine))


def read_findings(path: Path) -> tuple[Finding, ...]:
    """Raises `UsageError` naming the entry and what is wrong with it."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    except FileNotFoundError:
        if path == DEFAULT_FINDINGS:
            return ()
        raise UsageError(f"there is no file of findings {str(path)!r}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, list):
        raise UsageError(f"{path} must hold a list")
    return tuple(_finding(each, f"{path}, entry {i}", path) for i, each in enumerate(given, start=1))


def _finding(given: object, where: str, path: Path) -> Finding:
    if not isinstance(given, dict):
        raise UsageError(f"{where} is {given!r}, but must be a mapping")
    known = REQUIRED | OPTIONAL
    for key, value in given.items():
        if key not in known:
            raise UsageError(f"{where} has the key {key!r}, but may have {', '.join(known)}")
        if not isinstance(value, known[key]):
            raise UsageError(f"{where}: {key} is {value!r}, but must be a {known[key].__name__}")
    for key in REQUIRED:
        if key not in given:
            raise UsageError(f"{where} has no {key!r}")
        if isinstance(given[key], str) and not given[key].strip():
            raise UsageError(f"{where}: {key} is empty")
    if given["kind"] not in KINDS:
        raise UsageError(f"{where}: kind is {given['kind']!r}, but must be one of {', '.join(KINDS)}")
    script = path.parent / given["script"] if "script" in given else None
    if script is not None and not script.is_file():
        raise UsageError(f"{where}: there is no script {script}")
    return Finding(
        given["engine"],
        given["title"],
        given["kind"],
        tuple(_pattern(text, where) for text in given.get("tests", ())),
        tuple(_pattern(text, where) for text in given["words"]),
        tuple(_pattern(text, where) for text in given.get("workload", ())),
        given["cause"].strip(),
        tuple(map(str, given.get("threads", ()))),
        script,
    )


def _pattern(text: object, where: str) -> re.Pattern[str]:
    """What fits the empty text fits everything, and would file any failure under this finding."""
    if not isinstance(text, str):
        raise UsageError(f"{where}: {text!r} is no text, but must be a regular expression")
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"{where}: {text!r} is no regular expression: {error}") from error
    if pattern.search("") or pattern.search("~"):
        raise UsageError(f"{where}: {text!r} fits everything")
    return pattern
