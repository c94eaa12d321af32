"""The failure file: JSON with a schema version, and its only reader and writer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from batchproof.api import Completion, EngineConfig, FinishReason, Request
from batchproof.errors import UsageError
from batchproof.findings.failure import CaseNote, Failure, Run, Scene, Subject
from batchproof.findings.finding import Finding, Rule, thawed
from batchproof.findings.finding_text import first_line
from batchproof.promises import Promise
from batchproof.workload.workloads import Workload

SCHEMA = 1


@dataclass(frozen=True)
class FailureFile:
    """The content of a failure file.

    `should_be` holds the right answers to the last run, None for a request that must be refused.
    `is_shown_again` states whether the engine failed the same way when the file was written; None:
    not tried. `script` names the stand-alone script beside the file, `no_script` the reason why there
    is none.
    """

    failure: Failure
    test: str
    time_limit_s: float
    compute_dtype: str | None = None
    kv_cache_dtype: str = "auto"
    should_be: tuple[Completion | None, ...] = ()
    is_shown_again: bool | None = None
    script: str | None = None
    no_script: str | None = None

    def text(self) -> str:
        """Returns the content of the file."""
        finding, scene = self.failure.finding, self.failure.scene
        content = {
            "schema": SCHEMA,
            "headline": first_line(finding),
            "promise": finding.promise.id,
            "rule": finding.rule.id,
            "request_id": finding.request_id,
            "step": finding.step,
            "facts": {name: thawed(value) for name, value in finding.facts.items()},
            "appeared": finding.appeared,
            "test": self.test,
            "case": self.failure.case and asdict(self.failure.case),
            "subject": asdict(self.failure.subject),
            "compute_dtype": self.compute_dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            "time_limit_s": self.time_limit_s,
            "runs": [_run(each) for each in scene.runs],
            "other_runs": [_run(each) for each in scene.other],
            "should_be": [each and _answer(each) for each in self.should_be],
            "is_repeatable": self.failure.is_repeatable,
            "is_shown_again": self.is_shown_again,
            "script": self.script,
            "no_script": self.no_script,
        }
        return json.dumps(content, indent=1) + "\n"


def read_failure(path: Path) -> FailureFile:
    """Returns the failure file. Raises `UsageError` if it is missing, broken, or of another schema."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{str(path)!r} cannot be read as a failure file: {error}") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"{str(path)!r} has the schema {schema!r}, but must have {SCHEMA}")
    try:
        return _file(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{str(path)!r} is not a failure file of schema {SCHEMA}: {what}") from error


def _file(found: dict[str, Any]) -> FailureFile:
    finding = Finding(
        Promise[found["promise"]],
        Rule.by_id(found["rule"]),
        found["request_id"],
        found["step"],
        found["facts"],
        found["appeared"],
    )
    runs, other = (tuple(map(_read_run, found[key])) for key in ("runs", "other_runs"))
    if not runs:
        raise ValueError("it holds no run")
    case = CaseNote(**found["case"]) if found["case"] else None
    subject = Subject(**found["subject"])
    return FailureFile(
        Failure(finding, Scene(runs, other), subject, case, found["is_repeatable"]),
        should_be=tuple(each and _read_answer(each) for each in found["should_be"]),
        **{
            each.name: found[each.name]
            for each in fields(FailureFile)
            if each.name not in ("failure", "should_be")
        },
    )


def _run(run: Run) -> dict[str, Any]:
    workload = run.workload
    return {
        "engine_number": run.serial,
        "config": asdict(workload.config),
        "requests": [
            {
                "id": each.request_id,
                "prompt": list(each.prompt_token_ids),
                "max_new_tokens": each.max_new_tokens,
                "eos": sorted(each.eos_token_ids),
            }
            for each in workload.requests
        ],
        "arrivals": workload.arrivals and list(workload.arrivals),
        "aborts": [list(each) for each in workload.aborts],
        "got": [_answer(each) for each in run.completions],
    }


def _read_run(found: dict[str, Any]) -> Run:
    requests = tuple(
        Request(r["id"], tuple(r["prompt"]), r["max_new_tokens"], frozenset(r["eos"]))
        for r in found["requests"]
    )
    arrivals = None if found["arrivals"] is None else tuple(found["arrivals"])
    aborts = tuple((request_id, step) for request_id, step in found["aborts"])
    workload = Workload(requests, EngineConfig(**found["config"]), arrivals, aborts)
    return Run(found["engine_number"], workload, tuple(map(_read_answer, found["got"])))


def _answer(completion: Completion) -> dict[str, Any]:
    return {
        "id": completion.request_id,
        "tokens": list(completion.token_ids),
        "finish_reason": completion.finish_reason.value,
        "error": completion.error,
    }


def _read_answer(found: dict[str, Any]) -> Completion:
    reason = FinishReason(found["finish_reason"])
    return Completion(found["id"], tuple(found["tokens"]), reason, found["error"])
