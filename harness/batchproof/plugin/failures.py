"""A failed test as data, for its record."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from batchproof.api import Completion, Request
from batchproof.checks.verdict import ConformanceFailure, EngineRaised, Scene
from batchproof.errors import EngineHang
from batchproof.promises import Promise
from batchproof.records.trial import FailureRecord

HANG, RAISED, ERROR_ANSWER, TOKEN = "hang", "raised", "error", "token"
# Checks that do not name themselves yet, by the promise that is broken.
UNNAMED = {"P2": "cap", "P3": "stop", "P4": "order", "P13": "cancel", "P14": "stream"}


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
    answer = _answer(error.scene, request_id)
    return FailureRecord(
        promise=(found.promise if found else Promise.P10).id,
        rule=_rule(found, answer),
        headline=headline,
        case=case,
        request_id=request_id,
        step=found.step if found else None,
        facts=_facts(error.scene, request_id, answer),
        cause=str(cause) if cause is not None else None,
    )


def _rule(found: ConformanceFailure | None, answer: Completion | None) -> str:
    if found is None:
        return HANG
    if isinstance(found, EngineRaised):
        return RAISED
    if found.rule is not None:
        return found.rule
    if answer is not None and answer.error is not None:
        return ERROR_ANSWER
    return UNNAMED.get(found.promise.id, TOKEN if found.request_id is not None else "test")


def _facts(scene: Scene | None, request_id: str | None, answer: Completion | None) -> dict[str, object]:
    """Of the workload, and of the request and its answer where the failure is about one."""
    if scene is None or not scene.workload.requests:
        return {}
    requests: tuple[Request, ...] = tuple(scene.workload.requests)
    facts: dict[str, object] = {"shortest_prompt": min(len(r.prompt_token_ids) for r in requests)}
    if answer is not None:
        facts["finish_reason"] = answer.finish_reason.value
        facts["num_tokens"] = len(answer.token_ids)
    asked = next((each for each in requests if each.request_id == request_id), None)
    if asked is not None:
        facts["prompt_len"] = len(asked.prompt_token_ids)
        facts["max_new_tokens"] = asked.max_new_tokens
    return facts


def _answer(scene: Scene | None, request_id: str | None) -> Completion | None:
    completions = scene.runs[-1].completions if scene is not None else ()
    return next((each for each in completions if each.request_id == request_id), None)
