"""A failed test as data, for its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from batchproof.api import Completion, Request
from batchproof.checks.verdict import ConformanceFailure, EngineRaised, Scene
from batchproof.errors import EngineHang
from batchproof.promises import Promise
from batchproof.records.trial import FailureRecord

# Ids of rules for checks that do not name theirs, by the promise that is broken.
UNNAMED = {"P3": "finish-reason", "P4": "order", "P13": "not-aborted", "P14": "refusal-event"}


def described(item: pytest.Item, record: dict[str, object]) -> None:
    """Notes which test it is: its function, and its parameters but for engine, model and case."""
    given: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    record["function"] = getattr(item, "originalname", item.name)
    record["parameters"] = {
        name: value for name, value in given.items() if isinstance(value, str | int | float)
    }


def case_of(item: pytest.Item) -> str | None:
    """The name of the curated case that the test runs."""
    case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    return None if case is None else str(case.name)


# ADAPTER: failures do not yet carry their whole record; once they do, this function and those below go.
def failure_record(
    error: ConformanceFailure | EngineHang, headline: str, case: str | None, cause: object
) -> FailureRecord:
    """What can be had of a failure without reading its text."""
    found = error if isinstance(error, ConformanceFailure) else None
    request_id = found.request_id if found else None
    answer, asked = _answer(error.scene, request_id), _asked(error.scene, request_id)
    return FailureRecord(
        promise=(found.promise if found else Promise.P10).id,
        rule=_rule(found, answer, asked),
        headline=headline,
        case=case,
        request_id=request_id,
        step=found.step if found else None,
        facts=workload_facts(error.scene.workload.requests) if error.scene else {},
        cause=str(cause) if cause is not None else None,
    )


def _rule(found: ConformanceFailure | None, answer: Completion | None, asked: Request | None) -> str:
    if found is None:
        return "hang"
    if isinstance(found, EngineRaised):
        return "raised"
    has_error = answer is not None and answer.error is not None
    if found.rule is not None:
        return "refusal-words" if found.rule == "refused" and has_error else found.rule
    if has_error:
        return "good-refused"
    if found.promise is Promise.P2 and answer is not None and asked is not None:
        return "cap" if len(answer.token_ids) > asked.max_new_tokens else "short"
    return UNNAMED.get(found.promise.id, "stated" if found.request_id is None else "token")


def workload_facts(requests: Sequence[Request]) -> dict[str, object]:
    """What a known issue may ask of the workload that shows a failure."""
    return {"shortest_prompt": min(len(each.prompt_token_ids) for each in requests)} if requests else {}


def _asked(scene: Scene | None, request_id: str | None) -> Request | None:
    requests = scene.workload.requests if scene is not None else ()
    return next((each for each in requests if each.request_id == request_id), None)


def _answer(scene: Scene | None, request_id: str | None) -> Completion | None:
    completions = scene.runs[-1].completions if scene is not None else ()
    return next((each for each in completions if each.request_id == request_id), None)
