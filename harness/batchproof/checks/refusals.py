"""The answer to a bad request: an error without tokens that names value and rule (promise P12)."""

from __future__ import annotations

from collections.abc import Iterable

from batchproof.api import Completion, FinishReason, Request
from batchproof.checks.broken import broken
from batchproof.checks.ledger import Ledger
from batchproof.findings.finding import Rule


def require_refused(
    completion: Completion, request: Request, wanted: Iterable[tuple[str, ...]], ledger: Ledger
) -> None:
    """Raises `BrokenPromise` unless the request is refused in words that name what is wrong.

    The message must contain one word of each group in `wanted`, in upper or lower case. Counts the
    answer in the ledger.
    """
    name, wanted = request.request_id, list(wanted)
    if completion.finish_reason is not FinishReason.ERROR or completion.token_ids:
        raise broken(
            Rule.REFUSED,
            name,
            finish_reason=completion.finish_reason.value,
            num_tokens=len(completion.token_ids),
            cap=request.max_new_tokens,
            num_prompt_tokens=len(request.prompt_token_ids),
            wanted=wanted,
        )
    message = completion.error or ""
    missing = [group for group in wanted if not any(w.lower() in message.lower() for w in group)]
    if missing or not message:
        words = " and ".join(" or ".join(group) for group in missing) or "the value and the rule"
        error = completion.error
        raise broken(Rule.REFUSAL_WORDS, name, error=error, missing=words, wanted=wanted)
    ledger.num_requests += 1
