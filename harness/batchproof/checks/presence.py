"""Checks that a completion holds what was asked for besides its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from batchproof.api import Capability, Completion
from batchproof.findings.finding import Finding, Rule, found
from batchproof.oracle.choosing import sampling_of
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload


def presence_findings(
    workload: Workload,
    completions: Sequence[Completion],
    capabilities: AbstractSet[Capability],
    promise: Promise,
) -> Iterator[Finding]:
    """Yields what is missing where an engine with the capability is asked for logits, or for logprobs
    of a prompt, and a completion has none. Events have neither."""
    if workload.needs_stepping:
        return
    wants_logits = workload.config.return_logits and Capability.LOGITS in capabilities
    for request, completion in zip(workload.requests, completions, strict=False):
        name = completion.request_id
        if not completion.token_ids:  # refused: another rule judges that
            continue
        if wants_logits and completion.logits is None:
            yield found(Rule.LOGITS_MISSING, name, promise=promise)
        wants_prompt = sampling_of(request).prompt_logprobs is not None
        wants_prompt = wants_prompt and Capability.PROMPT_LOGPROBS in capabilities
        if wants_prompt and completion.prompt_logprobs is None:
            num_tokens = len(request.prompt_token_ids)
            yield found(Rule.PROMPT_LOGPROBS_MISSING, name, num_tokens=num_tokens, got="none at all")
