"""The completions of a call."""

from collections.abc import Callable, Iterable, Sequence

from batchproof.api import Completion, Request, TokenEvent


def with_refused(
    requests: Sequence[Request],
    refusals: Sequence[str | None],
    serve: Callable[[list[Request]], Iterable[Completion]],
) -> list[Completion]:
    """Returns a completion for each request. `serve` returns those of all that are not refused."""
    pairs = list(zip(requests, refusals, strict=True))
    others = iter(serve([request for request, refusal in pairs if refusal is None]))
    return [
        next(others) if refusal is None else Completion.refused(request.request_id, refusal)
        for request, refusal in pairs
    ]


def completion_of(events: Sequence[TokenEvent]) -> Completion:
    """Returns the completion that consists of all events of a request."""
    last = events[-1]
    assert last.finish_reason is not None, "the last event has it"
    tokens = tuple(each.token_id for each in events if each.token_id is not None)
    logprobs = tuple(each.logprobs for each in events if each.logprobs is not None)
    return Completion(
        last.request_id, tokens, last.finish_reason, last.error, logprobs=logprobs or None
    )
