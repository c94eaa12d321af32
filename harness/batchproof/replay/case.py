"""The failure as a case in the schema of `cases/`."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from batchproof.api import Capability, Completion, Limits, Request
from batchproof.cases.files import load_file
from batchproof.cases.schema import Case
from batchproof.findings.finding import Failure, Rule, Run
from batchproof.findings.finding_text import headline
from batchproof.oracle.choosing import is_drawn, is_malformed
from batchproof.run.cancelling import afterwards
from batchproof.run.trial import Trial
from batchproof.workload.paste import Endings, as_yaml
from batchproof.workload.workloads import Workload

RightAnswers = tuple[Completion | None, ...]


def right_answers(trial: Trial, workload: Workload) -> RightAnswers:
    """Returns one answer per request, in order; None for a request that has none, because it must be
    refused, its logits are NaN, its tokens are drawn, or the weights are replaced meanwhile."""
    return tuple(
        right_answer(trial, request, workload)
        if trial.subject.has_answer(request.prompt_token_ids)
        and not is_drawn(request)
        and not is_bad(trial, workload, index)
        and not any(each.step for each in workload.updates)
        else None
        for index, request in enumerate(workload.requests)
    )


def right_answer(trial: Trial, request: Request, workload: Workload) -> Completion:
    weights = workload.updates[-1].weights
    token_ids, reason = trial.oracle.under(workload.adapters, weights).expected(request)
    return Completion(request.request_id, tuple(token_ids), reason)


def is_bad(trial: Trial, workload: Workload, index: int) -> bool:
    """Returns whether the request must be refused under the limits of model and config."""
    request, config = workload.requests[index], workload.config
    limits = Limits.of(trial.subject.model, config)
    # Stepped, an id may come again once it is free.
    at_once = limits.refusals(workload.requests)[index]
    reason = limits.refusal(request) if workload.needs_stepping else at_once
    num_fed = len(request.prompt_token_ids) + request.max_new_tokens - 1
    is_too_large = ceil(num_fed / config.block_size) > (config.num_blocks or sys.maxsize)
    is_unknown = request.adapter is not None and not workload.variant_of(request)
    return (
        reason is not None
        or is_unknown
        or is_malformed(request)
        or (Capability.PREEMPTION in trial.capabilities and is_too_large)
    )


def case_text(trial: Trial, failure: Failure, name: str, test: str) -> str | None:
    """Returns the case as YAML; None if nothing is asked of the engine, or with adapters, of which a
    case has none."""
    workloads = asked_workloads(trial, failure)
    if not workloads or any(each.adapters for each in workloads):
        return None
    why = f"{headline(failure.finding)} ({failure.subject.engine}; {test})"
    endings = _endings(trial, failure, workloads)
    return f"{as_yaml(workloads, failure.promise.id, name, why, endings)}\n"


def loaded_case(text: str) -> Case:
    """Returns the case in the text. Raises `CaseError` if the schema cannot hold it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "failure.yaml"
        path.write_text(text, encoding="utf-8")
        (case,) = load_file(path)
    return case


def asked_workloads(trial: Trial, failure: Failure) -> list[Workload]:
    """Returns the calls of the case: those of the scene that ask something. Of two scenes that were
    compared it takes the one whose answer is wrong, because a case has one engine."""
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
        right_answer(trial, request, runs[-1].workload) != completion
        for request, completion in asked
        if request.request_id == name
    )


def _with_one_more(workload: Workload) -> Workload:
    """Returns the workload with one more request, which comes later and shows what cancelled ones
    left behind."""
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    end = max((*arrivals, *(step for _, step in workload.aborts))) + 1
    return replace(
        workload, requests=(*workload.requests, afterwards(workload)), arrivals=(*arrivals, end)
    )


def _endings(trial: Trial, failure: Failure, workloads: Sequence[Workload]) -> Endings:
    found = {
        (call, index): "error"
        for call, workload in enumerate(workloads)
        for index in range(len(workload.requests))
        if is_bad(trial, workload, index)
    }
    if failure.rule is Rule.CANCELLED_TOKEN:
        ids = [request.request_id for request in workloads[-1].requests]
        place = ids.index(str(failure.finding.request_id))
        found[len(workloads) - 1, place] = "aborted"
    return found
