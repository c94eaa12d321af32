"""The problems of a run as SARIF 2.1.0, the format of code scanning: a rule for each promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import batchproof
from batchproof.plugin.artifacts.problems import FinishedRun, Problem, problems_of, unexplained
from batchproof.requirements.promises import Promise

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
MOST_NAMED = 20  # tests of a problem


def sarif(run: FinishedRun) -> dict[str, Any]:
    """Returns the log as JSON values. Failures that are no engine's are notifications, no results."""
    own = [
        {"level": "error", "message": {"text": f"{each.test}: {each.report}"}}
        for each in unexplained(run.failed)
    ]
    driver = {"name": "Batchproof", "version": batchproof.__version__, "rules": _rules()}
    invocation = {
        "executionSuccessful": run.table.is_complete,
        "exitCode": run.table.exit_status,
        "toolExecutionNotifications": own,
    }
    log = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [_result(each) for each in problems_of(run.failed)],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [log]}


def _rules() -> Sequence[dict[str, Any]]:
    return [
        {
            "id": promise.id,
            "name": promise.title,
            "shortDescription": {"text": f"Promise {promise} is broken"},
            "fullDescription": {"text": promise.sentence},
            "help": {"text": f"An engine promises: {promise.sentence}."},
            "defaultConfiguration": {"level": "error"},
        }
        for promise in Promise
    ]


def _result(problem: Problem) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": problem.promise.id,
        "ruleIndex": list(Promise).index(problem.promise),
        "level": "error",
        "message": {"text": _message(problem)},
        "partialFingerprints": {"batchproof/v1": problem.fingerprint},
        "properties": {
            "engine": problem.engine,
            "rule": problem.failure.rule,
            "tests": problem.tests[:MOST_NAMED],
        },
    }
    if at := problem.at:
        file, region = {"uri": quote(at.file), "uriBaseId": "%SRCROOT%"}, {"startLine": at.line}
        place: dict[str, Any] = {"physicalLocation": {"artifactLocation": file, "region": region}}
        if at.name:
            place["logicalLocations"] = [{"fullyQualifiedName": at.name}]
        found["locations"] = [place]
    return found


def _message(problem: Problem) -> str:
    cause = f"\nmost likely cause: {problem.cause}" if problem.cause else ""
    return f"{problem.engine}: {problem.headline}{cause}"
