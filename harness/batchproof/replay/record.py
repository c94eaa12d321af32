"""The failure file: JSON with a schema version, its only reader and writer, and the case beside it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Self, cast

from batchproof.api import Completion, EngineConfig, FinishReason, Grammar, Request
from batchproof.errors import UsageError
from batchproof.findings.finding import (
    CaseNote,
    Fact,
    Failure,
    Finding,
    Rule,
    Run,
    Scene,
    Subject,
    thawed,
)
from batchproof.findings.finding_text import first_line
from batchproof.records.decode import decode, encode
from batchproof.records.file_kinds import json_lines, parsed
from batchproof.replay.case import case_text, right_answers
from batchproof.replay.judge import is_shown_again
from batchproof.requirements.promises import Promise
from batchproof.run.trial import Trial
from batchproof.workload.sampling_values import plain_values, sampling_params
from batchproof.workload.workloads import KINDS, Interruption, Workload

SCHEMA = 1


@dataclass(frozen=True)
class StoredRequest:
    """A request under the keys of the file."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    eos: tuple[int, ...]
    sampling: Mapping[str, object] | None = None
    adapter: str | None = None
    grammar: Grammar | None = None

    @classmethod
    def of(cls, request: Request) -> Self:
        eos = tuple(sorted(request.eos_token_ids))
        asked = None if request.sampling is None else plain_values(request.sampling)
        prompt, cap = request.prompt_token_ids, request.max_new_tokens
        return cls(request.request_id, prompt, cap, eos, asked, request.adapter, request.grammar)

    def request(self) -> Request:
        """Returns the request itself. Raises `ValueError` for parameters out of place."""
        asked = None if self.sampling is None else sampling_params(self.sampling)
        eos = frozenset(self.eos)
        prompt, cap = self.prompt, self.max_new_tokens
        return Request(self.id, prompt, cap, eos, asked, self.adapter, self.grammar)


@dataclass(frozen=True)
class StoredAnswer:
    """A completion under the keys of the file."""

    id: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    error: str | None

    @classmethod
    def of(cls, answer: Completion) -> Self:
        return cls(answer.request_id, answer.token_ids, answer.finish_reason, answer.error)

    def completion(self) -> Completion:
        return Completion(self.id, self.tokens, self.finish_reason, self.error)


@dataclass(frozen=True)
class StoredRun:
    """A run under the keys of the file; what a workload holds besides requests has the same names."""

    engine_number: int
    config: EngineConfig
    requests: tuple[StoredRequest, ...]
    arrivals: tuple[int, ...] | None
    aborts: tuple[tuple[str, int], ...]
    got: tuple[StoredAnswer, ...]
    adapters: tuple[tuple[str, int], ...] = ()
    adapters_in_place: bool = False
    weights: int = 0
    interruptions: tuple[Interruption, ...] = ()

    @classmethod
    def of(cls, run: Run) -> Self:
        requests = tuple(map(StoredRequest.of, run.workload.requests))
        got = tuple(map(StoredAnswer.of, run.completions))
        same = {name: getattr(run.workload, name) for name in BESIDE_REQUESTS}
        return cls(engine_number=run.serial, requests=requests, got=got, **same)

    def run(self) -> Run:
        """Returns the run itself. Raises `ValueError` for a value out of place."""
        for each in self.interruptions:
            _known("interruptions", each.kind, KINDS)
        same = {name: getattr(self, name) for name in BESIDE_REQUESTS}
        workload = Workload(tuple(each.request() for each in self.requests), **same)
        return Run(self.engine_number, workload, tuple(each.completion() for each in self.got))


BESIDE_REQUESTS = [each.name for each in fields(Workload) if each.name != "requests"]


@dataclass(frozen=True, kw_only=True)
class FailureFile:
    """The content of a failure file; its fields are the keys.

    `should_be` holds the right answers to the last run, None for a request that must be refused.
    `is_shown_again` states whether the engine failed the same way when the file was written; None:
    not tried.
    """

    schema: int = SCHEMA
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

    @classmethod
    def of(cls, failure: Failure, should_be: Sequence[Completion | None], **others: Any) -> Self:
        finding, scene = failure.finding, failure.scene
        return cls(
            headline=first_line(finding),
            promise=finding.promise.id,
            rule=finding.rule.id,
            request_id=finding.request_id,
            step=finding.step,
            facts={name: thawed(value) for name, value in finding.facts.items()},
            appeared=finding.appeared,
            case=failure.case,
            subject=failure.subject,
            runs=tuple(map(StoredRun.of, scene.runs)),
            other_runs=tuple(map(StoredRun.of, scene.other)),
            should_be=tuple(None if each is None else StoredAnswer.of(each) for each in should_be),
            is_repeatable=failure.is_repeatable,
            **others,
        )

    @cached_property
    def failure(self) -> Failure:
        """The failure itself. Raises `ValueError` for a value out of place."""
        if not self.runs:
            raise ValueError("runs is empty")
        promise = Promise[_known("promise", self.promise, (each.id for each in Promise))]
        rule = Rule.by_id(_known("rule", self.rule, (each.id for each in Rule)))
        facts = cast(Mapping[str, Fact], self.facts)  # JSON values
        finding = Finding(promise, rule, self.request_id, self.step, facts, self.appeared)
        scene = Scene(*(tuple(each.run() for each in runs) for runs in (self.runs, self.other_runs)))
        return Failure(finding, scene, self.subject, self.case, self.is_repeatable)

    def text(self) -> str:
        return json_lines(encode(self))


def read_failure(path: Path) -> FailureFile:
    """Returns the failure file. Raises `UsageError` if it is missing, of another schema, or damaged:
    the message names the field."""
    document = parsed(path)
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"{str(path)!r} has the schema {schema!r}, but must have {SCHEMA}")
    try:
        file = decode(FailureFile, document, is_closed=False)  # earlier ones name a script as well
        _ = file.failure  # is made once, here
    except (TypeError, ValueError) as error:
        raise UsageError(f"failure file {str(path)!r} is damaged: {error}") from error
    return file


def _known(field: str, value: str, choices: Iterable[str]) -> str:
    known = [str(each) for each in choices]
    if value not in known:
        raise ValueError(f"{field} is {value!r}, not one of {', '.join(known)}")
    return value


LONGEST_NAME = 110


def write(trial: Trial, failure: Failure, directory: Path, test: str, name: str) -> Path:
    """Returns the path of the failure file, which has the case in a file of the same name, once the
    failure was replayed. Overwrites nothing. `test` is the node id of the test that found it, `name`
    its short name or that of the case it ran."""
    is_shown = is_shown_again(trial, failure)
    directory.mkdir(parents=True, exist_ok=True)
    path = _new_file(directory, _stem(failure, name))
    case = case_text(trial, failure, path.stem, test)
    if case is not None:
        path.with_suffix(".yaml").write_text(case, encoding="utf-8")
    precision = trial.oracle.precision
    content = FailureFile.of(
        failure,
        right_answers(trial, failure.scene.workload),
        test=test,
        time_limit_s=trial.lab.time_limit_s,
        compute_dtype=precision.compute,
        kv_cache_dtype=precision.kv_cache or "auto",
        is_shown_again=is_shown,
    )
    path.write_text(content.text(), encoding="utf-8")
    return path


def _stem(failure: Failure, name: str) -> str:
    engine = failure.subject.engine.replace(".py:", ":").rpartition("/")[2]
    parts = (failure.promise.id, name, engine, Path(failure.subject.model).name)
    kebab = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    return "-".join(filter(None, kebab))[:LONGEST_NAME].strip("-")


def _new_file(directory: Path, stem: str) -> Path:
    """Creates the file, so that two processes get different ones."""
    for number in count(1):
        path = directory / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            return path
    raise AssertionError("numbers do not end")
