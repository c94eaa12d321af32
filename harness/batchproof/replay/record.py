"""The failure file: JSON with a schema version, and its only reader and writer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from batchproof.api import Completion, EngineConfig, FinishReason, Request
from batchproof.errors import UsageError
from batchproof.findings.failure import CaseNote, Failure, Run, Scene, Subject
from batchproof.findings.finding import Fact, Finding, Rule, thawed
from batchproof.findings.finding_text import first_line
from batchproof.records.decode import decode, encode
from batchproof.requirements.promises import Promise
from batchproof.workload.sampling_values import plain_values, sampling_params
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
        return json.dumps(encode(_stored(self)), indent=1) + "\n"


@dataclass(frozen=True)
class StoredRequest:
    """A request under the keys of the file."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    eos: tuple[int, ...]
    sampling: Mapping[str, object] | None = None

    def request(self) -> Request:
        """Returns the request itself. Raises `ValueError` for parameters out of place."""
        asked = None if self.sampling is None else sampling_params(self.sampling)
        return Request(self.id, self.prompt, self.max_new_tokens, frozenset(self.eos), asked)


@dataclass(frozen=True)
class StoredAnswer:
    """A completion under the keys of the file."""

    id: str
    tokens: tuple[int, ...]
    finish_reason: str
    error: str | None

    @classmethod
    def of(cls, answer: Completion) -> StoredAnswer:
        """Returns the completion in the form of the file."""
        return cls(answer.request_id, answer.token_ids, answer.finish_reason.value, answer.error)

    def completion(self) -> Completion:
        """Returns the completion itself. Raises `ValueError` for an unknown finish reason."""
        reason = _known("finish_reason", self.finish_reason, FinishReason)
        return Completion(self.id, self.tokens, FinishReason(reason), self.error)


@dataclass(frozen=True)
class StoredRun:
    """A run under the keys of the file."""

    engine_number: int
    config: EngineConfig
    requests: tuple[StoredRequest, ...]
    arrivals: tuple[int, ...] | None
    aborts: tuple[tuple[object, ...], ...]  # id, step
    got: tuple[StoredAnswer, ...]

    @classmethod
    def of(cls, run: Run) -> StoredRun:
        """Returns the run in the form of the file."""
        asked = run.workload
        requests = tuple(
            StoredRequest(
                each.request_id,
                each.prompt_token_ids,
                each.max_new_tokens,
                tuple(sorted(each.eos_token_ids)),
                None if each.sampling is None else plain_values(each.sampling),
            )
            for each in asked.requests
        )
        got = tuple(map(StoredAnswer.of, run.completions))
        arrivals = None if asked.arrivals is None else tuple(asked.arrivals)
        return cls(run.serial, asked.config, requests, arrivals, tuple(asked.aborts), got)

    def run(self) -> Run:
        """Returns the run itself. Raises `ValueError` for a value out of place."""
        aborts = tuple((str(name), int(str(step))) for name, step in self.aborts)
        requests = tuple(each.request() for each in self.requests)
        workload = Workload(requests, self.config, self.arrivals, aborts)
        return Run(self.engine_number, workload, tuple(each.completion() for each in self.got))


@dataclass(frozen=True)
class StoredFailure:
    """The document: its fields are the keys of the file."""

    schema: int
    headline: str
    promise: str
    rule: str
    request_id: str | None
    step: int | None
    facts: Mapping[str, object]
    appeared: str | None
    test: str
    case: CaseNote | None
    subject: Subject
    compute_dtype: str | None
    kv_cache_dtype: str
    time_limit_s: float
    runs: tuple[StoredRun, ...]
    other_runs: tuple[StoredRun, ...]
    should_be: tuple[StoredAnswer | None, ...]
    is_repeatable: bool
    is_shown_again: bool | None
    script: str | None
    no_script: str | None


def _stored(file: FailureFile) -> StoredFailure:
    finding, scene = file.failure.finding, file.failure.scene
    return StoredFailure(
        SCHEMA,
        first_line(finding),
        finding.promise.id,
        finding.rule.id,
        finding.request_id,
        finding.step,
        {name: thawed(value) for name, value in finding.facts.items()},
        finding.appeared,
        file.test,
        file.failure.case,
        file.failure.subject,
        file.compute_dtype,
        file.kv_cache_dtype,
        file.time_limit_s,
        tuple(map(StoredRun.of, scene.runs)),
        tuple(map(StoredRun.of, scene.other)),
        tuple(None if each is None else StoredAnswer.of(each) for each in file.should_be),
        file.failure.is_repeatable,
        file.is_shown_again,
        file.script,
        file.no_script,
    )


def read_failure(path: Path) -> FailureFile:
    """Returns the failure file. Raises `UsageError` if it is missing, of another schema, or damaged:
    the message names the field.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{str(path)!r} cannot be read as a failure file: {error}") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"{str(path)!r} has the schema {schema!r}, but must have {SCHEMA}")
    try:
        return _file(decode(StoredFailure, found))
    except ValueError as error:
        raise UsageError(f"failure file {str(path)!r} is damaged: {error}") from error


def _file(stored: StoredFailure) -> FailureFile:
    if not stored.runs:
        raise ValueError("runs is empty")
    promise = _known("promise", stored.promise, (each.id for each in Promise))
    rule = _known("rule", stored.rule, (each.id for each in Rule))
    where = stored.request_id, stored.step
    facts = cast(Mapping[str, Fact], stored.facts)  # JSON values
    finding = Finding(Promise[promise], Rule.by_id(rule), *where, facts, stored.appeared)
    scene = Scene(*(tuple(each.run() for each in runs) for runs in (stored.runs, stored.other_runs)))
    return FailureFile(
        Failure(finding, scene, stored.subject, stored.case, stored.is_repeatable),
        stored.test,
        stored.time_limit_s,
        stored.compute_dtype,
        stored.kv_cache_dtype,
        tuple(None if each is None else each.completion() for each in stored.should_be),
        stored.is_shown_again,
        stored.script,
        stored.no_script,
    )


def _known(field: str, value: str, choices: Iterable[str]) -> str:
    """Returns the value if it is one of the choices. Raises `ValueError`."""
    known = [str(each) for each in choices]
    if value not in known:
        raise ValueError(f"{field} is {value!r}, not one of {', '.join(known)}")
    return value
