"""The failure as a case in the schema of `cases/`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from batchproof.cases.files import load_file
from batchproof.cases.schema import Case
from batchproof.failure import Failure
from batchproof.replay.answers import is_bad
from batchproof.run.trial import Trial
from batchproof.wording.findings import headline
from batchproof.workload.paste import Expectations, Pasted, in_quotes
from batchproof.workload.workloads import Workload


def case_text(trial: Trial, failure: Failure, name: str, test: str) -> str | None:
    """The case as YAML; None where nothing is asked of the engine."""
    workloads = asked_workloads(failure)
    if not workloads:
        return None
    why = in_quotes(f"{headline(failure.finding)} ({failure.subject.engine}; {test})")
    pasted = Pasted(workloads, failure.promise.id, name, why, _expectations(trial, failure))
    return f"{pasted}\n"


def loaded_case(text: str) -> Case:
    """The case in the text. Raises `CaseError` where the schema cannot hold it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "failure.yaml"
        path.write_text(text, encoding="utf-8")
        (case,) = load_file(path)
    return case


def asked_workloads(failure: Failure) -> list[Workload]:
    """Those of the scene that ask something: a call of a case is never empty."""
    return [run.workload for run in failure.scene.runs if run.workload.requests]


def _expectations(trial: Trial, failure: Failure) -> Expectations:
    return {
        (call, index): "{finish: error" + _words(failure, workload, index) + "}"
        for call, workload in enumerate(asked_workloads(failure))
        for index in range(len(workload.requests))
        if is_bad(trial, workload, index)
    }


def _words(failure: Failure, workload: Workload, index: int) -> str:
    """A case wants all its words: where a test leaves a choice between some, it wants none of them."""
    is_it = workload.requests[index].request_id == failure.finding.request_id
    wanted = failure.finding.facts.get("wanted") if is_it else None
    groups = wanted if isinstance(wanted, tuple) else ()
    words = [str(g[0]) for g in groups if isinstance(g, tuple) and len(g) == 1]
    return f", error: [{', '.join(map(in_quotes, words))}]" if words else ""
