"""Enters a failure into the record of its test: in the process of the test, or in the controller if
that process is gone. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchproof.api import EngineConfig, Request
from batchproof.findings.causes import Diagnosis
from batchproof.findings.finding import Finding, thawed
from batchproof.findings.finding_text import first_line
from batchproof.records.decode import encode
from batchproof.records.trial_record import FailureRecord
from batchproof.run.capabilities import PROBE
from batchproof.workload.workloads import Workload

FIRST_CONTACT = Workload((PROBE,), EngineConfig(return_logits=True))


def enter(
    record: dict[str, Any],
    finding: Finding,
    case: str | None = None,
    diagnosis: Diagnosis | None = None,
    replay: str | None = None,
    requests: Sequence[Request] = (),
) -> None:
    """Enters the failure into the record of the test, as JSON values."""
    facts = {name: thawed(value) for name, value in finding.facts.items()}
    record["failure"] = encode(
        FailureRecord(
            promise=finding.promise.id,
            rule=finding.rule.id,
            headline=first_line(finding),
            case=case,
            request_id=finding.request_id,
            step=finding.step,
            facts=facts | (workload_facts(requests) if requests else {}),
            cause=None if diagnosis is None else diagnosis.cause.name,
            replay=replay,
        )
    )


def workload_facts(requests: Sequence[Request]) -> dict[str, object]:
    """Returns what a known issue may require of the workload that shows a failure."""
    return {"shortest_prompt": min(len(each.prompt_token_ids) for each in requests)}
