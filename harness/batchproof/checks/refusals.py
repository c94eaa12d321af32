"""Rule P12, the answer to a bad request: an error without tokens that names value and rule."""

from __future__ import annotations

from collections.abc import Iterable

from batchproof.api import Completion, FinishReason, Request
from batchproof.checks.verdict import ConformanceFailure
from batchproof.promises import Promise
from batchproof.run.trial import Trial


def require_refused(
    trial: Trial,
    completion: Completion,
    request: Request,
    wanted: Iterable[tuple[str, ...]],
) -> None:
    """`wanted`: of each group of words the message must hold one, in whatever case."""
    where, wanted = f"bad request {request.request_id!r}", list(wanted)
    if completion.finish_reason is not FinishReason.ERROR or completion.token_ids:
        raise ConformanceFailure(
            Promise.P12,
            f"{where} was answered with {completion.finish_reason} and {len(completion.token_ids)} "
            f"tokens, but should be refused",
            [f"max_new_tokens {request.max_new_tokens}, {len(request.prompt_token_ids)} prompt tokens"],
            request.request_id,
        ).found_by("refused", words=wanted)
    message = completion.error or ""
    missing = [group for group in wanted if not any(w.lower() in message.lower() for w in group)]
    if missing or not message:
        words = " and ".join(" or ".join(group) for group in missing) or "the value and the rule"
        raise ConformanceFailure(
            Promise.P12,
            f"{where} was refused with {completion.error!r}, which does not name {words}",
            request_id=request.request_id,
        ).found_by("refused", words=wanted)
    trial.ledger.num_requests += 1
