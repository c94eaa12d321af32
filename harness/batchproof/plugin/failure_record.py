"""The entry of a failure in the record of its test. A controller of workers makes one too, of what its
workers died of, and imports no torch."""

from batchproof.api import EngineConfig
from batchproof.findings.causes import Diagnosis
from batchproof.findings.finding import Failure, Finding, thawed
from batchproof.findings.finding_text import first_line
from batchproof.records.trial_record import FailureRecord, FindingRecord
from batchproof.run.capabilities import PROBE
from batchproof.workload.workloads import Workload

FIRST_CONTACT = Workload((PROBE,), EngineConfig(return_logits=True))


def record_failure(
    failure: Failure, diagnosis: Diagnosis | None = None, replay: str | None = None
) -> FailureRecord:
    """Returns the record of a failure. `replay` is the path of its failure file, if there is one."""
    decisive = _record_finding(failure.finding, failure.scene.workload)
    return FailureRecord(
        **vars(decisive),
        case=failure.case.name if failure.case else None,
        cause=None if diagnosis is None else diagnosis.cause.name,
        replay=replay,
        others=tuple(_record_finding(each) for each in failure.others),
    )


def _record_finding(finding: Finding, workload: Workload | None = None) -> FindingRecord:
    facts = {name: thawed(value) for name, value in finding.facts.items()}
    if workload and workload.requests:
        facts |= _workload_facts(workload)
    return FindingRecord(
        promise=finding.promise.id,
        rule=finding.rule.id,
        headline=first_line(finding),
        request_id=finding.request_id,
        step=finding.step,
        facts=facts,
    )


def _workload_facts(workload: Workload) -> dict[str, object]:
    """Returns what a known issue may require of the workload that shows a failure."""
    return {
        "shortest_prompt": min(len(each.prompt_token_ids) for each in workload.requests),
        "has_drafts": workload.config.num_speculative_tokens is not None,
        "has_draws": any(
            each.sampling is not None and each.sampling.draws for each in workload.requests
        ),
    }
