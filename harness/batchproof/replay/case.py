"""The failure as a case in the schema of `cases/`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batchproof.cases.files import load_file
from batchproof.cases.schema import Case
from batchproof.findings.failure import Failure, Run
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import headline
from batchproof.replay.right_answers import is_bad, right_answer
from batchproof.run.cancelling import afterwards
from batchproof.run.trial import Trial
from batchproof.workload.paste import Expectations, Pasted, in_quotes
from batchproof.workload.workloads import Workload


def case_text(trial: Trial, failure: Failure, name: str, test: str) -> str | None:
    """Returns the case as YAML; None if nothing is asked of the engine."""
    workloads = asked_workloads(trial, failure)
    if not workloads:
        return None
    why = in_quotes(f"{headline(failure.finding)} ({failure.subject.engine}; {test})")
    expected = _expectations(trial, failure, workloads)
    return f"{Pasted(workloads, failure.promise.id, name, why, expected)}\n"


def loaded_case(text: str) -> Case:
    """Returns the case in the text. Raises `CaseError` if the schema cannot hold it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "failure.yaml"
        path.write_text(text, encoding="utf-8")
        (case,) = load_file(path)
    return case


def asked_workloads(trial: Trial, failure: Failure) -> list[Workload]:
    """Returns the calls of the case: those of the scene that ask something.

    Of two scenes that were compared it takes the one whose answer is wrong, because a case has one
    engine.
    """
    scene = failure.scene
    runs = scene.other if _is_wrong(trial, failure, scene.other) else scene.runs
    workloads = [run.workload for run in runs if run.workload.requests]
    if workloads and workloads[-1].aborts:
        workloads[-1] = _with_one_more(workloads[-1])
    return workloads


def _is_wrong(trial: Trial, failure: Failure, runs: Sequence[Run]) -> bool:
    """Returns whether the request that failed is answered wrongly in the last of these runs."""
    name = failure.finding.request_id
    asked = zip(runs[-1].workload.requests, runs[-1].completions, strict=False) if runs else ()
    return any(
        right_answer(trial, request) != completion
        for request, completion in asked
        if request.request_id == name
    )


def _with_one_more(workload: Workload) -> Workload:
    """Returns the workload with one more request, which comes later and shows what cancelled ones
    left behind.
    """
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    end = max((*arrivals, *(step for _, step in workload.aborts))) + 1
    return replace(
        workload, requests=(*workload.requests, afterwards(workload)), arrivals=(*arrivals, end)
    )


def _expectations(trial: Trial, failure: Failure, workloads: Sequence[Workload]) -> Expectations:
    found = {
        (call, index): "{finish: error}"
        for call, workload in enumerate(workloads)
        for index in range(len(workload.requests))
        if is_bad(trial, workload, index)
    }
    if failure.rule is Rule.CANCELLED_TOKEN:
        ids = [request.request_id for request in workloads[-1].requests]
        place = ids.index(str(failure.finding.request_id))
        found[len(workloads) - 1, place] = "{finish: aborted}"
    return found
