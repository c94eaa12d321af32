"""One request and what the server says to it, as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    TokenEvent,
)
from batchproof_engines.adapters.openai.client import Exchange
from batchproof_engines.adapters.openai.dialect import Dialect
from batchproof_engines.adapters.openai.failures import Refused
from batchproof_engines.adapters.openai.reading import Reader, Unreadable


def tell(
    request: Request, exchange: Exchange, dialect: Dialect, *, at_once: bool = False
) -> Iterator[TokenEvent]:
    """The last event has the reason, and the last token unless that has been told already: a token is
    held back until more is known, or `at_once` only if it may be the last.

    Raises `EngineFailed`, and `Cut` if we have hung up.
    """
    request_id, eos = request.request_id, request.eos_token_ids
    reader = Reader(dialect.vocab_size, dialect.tokens)
    held: int | None = None
    num_tokens = 0
    try:
        for token in _tokens(request, exchange, dialect, reader):
            if held is not None:
                yield TokenEvent(request_id, held)
            num_tokens, held = num_tokens + 1, token
            if token in eos and dialect.eos == "client":
                break  # the rest is not asked for
            if at_once and token not in eos and num_tokens < request.max_new_tokens:
                yield TokenEvent(request_id, token)
                held = None
    except Refused as refusal:
        yield TokenEvent.refused(request_id, str(refusal))
        return
    except Unreadable as slip:
        raise exchange.failed(str(slip)) from None
    finally:
        exchange.close()
    # An EOS on the cap is STOP, though some servers say length.
    reason = FinishReason.STOP if held in eos else reader.finish_reason
    assert reason is not None, "an answer without one cannot be read"
    yield TokenEvent(request_id, held, reason)


def completed(request: Request, events: Iterable[TokenEvent]) -> Completion:
    """All events of a request as its completion."""
    tokens: list[int] = []
    for event in events:
        if event.token_id is not None:
            tokens.append(event.token_id)
        if event.finish_reason is not None:
            return Completion(request.request_id, tuple(tokens), event.finish_reason, event.error)
    raise AssertionError("the last event has the reason")


def _tokens(request: Request, exchange: Exchange, dialect: Dialect, reader: Reader) -> Iterator[int]:
    answers = exchange.read_events() if dialect.is_streamed else iter([exchange.read()])
    for answer in answers:
        yield from reader.feed(answer)
    yield from reader.end(request)
