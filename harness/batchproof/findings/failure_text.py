"""Renders a failure as the text that a test prints."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure, Subject
from batchproof.findings.finding_text import evidence, first_line
from batchproof.workload.paste import Pasted, workload_as_yaml

WORKLOAD = "workload, to paste into a file of cases/:"


def failure_text(failure: Failure, diagnosis: Diagnosis | None = None) -> str:
    """Returns the first line, evidence, most likely cause, engine and model, and the workload as
    YAML."""
    return "\n".join(_lines(failure, diagnosis))


def _lines(failure: Failure, diagnosis: Diagnosis | None) -> Iterator[str]:
    yield first_line(failure.finding)
    yield from (f"  {line}" for line in _evidence(failure))
    if diagnosis is not None:
        yield from diagnosis_lines(diagnosis)
    yield f"engine: {failure.subject.engine}    model: {subject_words(failure.subject)}"
    yield WORKLOAD
    name = f"{failure.case.name}-as-run" if failure.case else Pasted.name
    yaml = workload_as_yaml(failure.scene.workload, failure.promise.id, name)
    yield from (f"    {line}" for line in yaml.splitlines())


def _evidence(failure: Failure) -> Iterator[str]:
    yield from evidence(failure.finding)
    case = failure.case
    if case is not None:
        yield f"case {case.name} ({case.place}): {case.why}"
        yield from [case.link] if case.link else []
    yield from (f"also: {first_line(each)}" for each in failure.others)
    if not failure.is_repeatable:
        yield "run once more, the same workload gave another result"


def subject_words(subject: Subject) -> str:
    """Returns the model, its dtype and its device."""
    return f"{subject.model} ({subject.dtype}, {subject.device})"


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Returns a line with the cause, then its evidence."""
    likely = f"most likely cause: {diagnosis.cause.word}"
    head = f"{'no cause found' if diagnosis.cause is Cause.UNKNOWN else likely}: {diagnosis.text}"
    return [head, *(f"  {line}" for line in diagnosis.evidence)]
