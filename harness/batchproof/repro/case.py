"""The failure as a case for `cases/`: `batchproof.cases` loads and runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batchproof.api import Request
from batchproof.cases.files import load_file
from batchproof.cases.runner import run_case
from batchproof.checks.verdict import ConformanceFailure, Run
from batchproof.errors import EngineHang, UsageError
from batchproof.repro.failed import Failed
from batchproof.run.trial import Trial
from batchproof.workload.paste import Expectations, Pasted, in_quotes
from batchproof.workload.workloads import Workload

EVENTS = {
    "preemption": "preemption",
    "prompt fed in parts": "chunked",
    "prefill that shares a step with a decode": "mixed_step",
    "slot that was used again": "slot_reuse",
    "prefix hit": "prefix_hit",
}


def write_case(failed: Failed, path: Path) -> None:
    """A comment at its top says whether it was seen to fail. No case, where nothing is asked."""
    if not any(workload.requests for workload in _judged_workloads(failed)):
        return
    body = f"{_pasted(failed, path.stem)}\n"
    path.write_text(body, encoding="utf-8")
    path.write_text(f"# {_remark(failed, path)}\n\n{body}", encoding="utf-8")


def _pasted(failed: Failed, name: str) -> Pasted:
    workloads = [each for each in _judged_workloads(failed) if each.requests]  # calls are not empty
    event = EVENTS.get(failed.facts.get("what", ""), failed.facts.get("what"))
    return Pasted(
        workloads,
        failed.promise.id,
        name,
        in_quotes(f"{failed.finding} ({failed.trial.spec.name}; {failed.test})"),
        _expectations(failed, workloads),
        [event] if event else [],
    )


def _judged_workloads(failed: Failed) -> list[Workload]:
    """Of two scenes that were compared, the one whose tokens are wrong: a case has one engine."""
    if failed.scene.other and _has_wrong_tokens(failed, failed.scene.other):
        return failed.other_workloads
    if failed.rule != "cancel":
        return failed.workloads
    return [*failed.workloads[:-1], _with_one_more(failed.workload)]


def _with_one_more(workload: Workload) -> Workload:
    """Beside a request that comes afterwards it shows what cancelled ones have left over."""
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    end = max((*arrivals, *(step for _, step in workload.aborts))) + 1
    requests = (*workload.requests, Request("afterwards", (2, 7, 1), 2))
    return replace(workload, requests=requests, arrivals=(*arrivals, end))


def _has_wrong_tokens(failed: Failed, runs: Sequence[Run]) -> bool:
    last = runs[-1]
    pairs = zip(last.workload.requests, last.completions, strict=False)
    return any(
        failed.right(request) != completion
        for request, completion in pairs
        if request.request_id == failed.request_id
    )


def _expectations(failed: Failed, workloads: Sequence[Workload]) -> Expectations:
    found = {
        (call, index): "{finish: error" + _words(failed, workload, index) + "}"
        for call, workload in enumerate(workloads)
        for index in range(len(workload.requests))
        if failed.is_bad(workload, index)
    }
    if failed.rule == "cancel":  # the one it names was given tokens that should not be
        ids = [request.request_id for request in workloads[-1].requests]
        found |= {
            (len(workloads) - 1, index): "{finish: aborted}"
            for index, request_id in enumerate(ids)
            if request_id == failed.request_id
        }
    return found


def _words(failed: Failed, workload: Workload, index: int) -> str:
    """A case wants all its words; the choices of a test are none."""
    if workload is not failed.workload or workload.requests[index].request_id != failed.request_id:
        return ""
    words = [group[0] for group in failed.facts.get("words", ()) if len(group) == 1]
    return f", error: [{', '.join(map(in_quotes, words))}]" if words else ""


def _remark(failed: Failed, path: Path) -> str:
    engine, subject = failed.trial.spec.name, failed.trial.subject
    if failed.rule == "hang":
        return f"Not tried, for it would hang again: {engine} on {subject}."
    found = _run(failed, path)
    if found is None:
        return f"A case cannot express this failure: {engine} passes it on {subject}. See the script."
    return f"Fails on {engine}, {subject}: {' '.join(found.split())}"


def _run(failed: Failed, path: Path) -> str | None:
    """What the engine does wrong in the case; None if nothing."""
    old = failed.trial
    trial = Trial(old.lab, old.spec, old.oracle, old.capabilities, failed.promise)
    try:
        for case in load_file(path):
            run_case(trial, case)
    except (ConformanceFailure, EngineHang) as failure:
        return str(failure).splitlines()[0]
    except UsageError as error:
        return f"it is no case: {error}"
    return None
