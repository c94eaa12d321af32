"""The completions of a call, made of the events of its requests."""

from collections.abc import Iterable, Sequence

from batchproof.api import Completion, Request, TokenEvent


def completions_of(
    requests: Sequence[Request], refusals: Sequence[str | None], told: Iterable[Sequence[TokenEvent]]
) -> list[Completion]:
    """Returns a completion for each request. `told` has all events of each that is not refused."""
    served = iter(told)
    return [
        _completion(next(served))
        if refusal is None
        else Completion.refused(request.request_id, refusal)
        for request, refusal in zip(requests, refusals, strict=True)
    ]


def _completion(events: Sequence[TokenEvent]) -> Completion:
    last = events[-1]
    assert last.finish_reason is not None, "the last event has it"
    tokens = tuple(each.token_id for each in events if each.token_id is not None)
    logprobs = tuple(each.logprobs for each in events if each.logprobs is not None)
    return Completion(
        last.request_id, tokens, last.finish_reason, last.error, logprobs=logprobs or None
    )
