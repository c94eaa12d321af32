"""The server's answer to one request, as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    TokenEvent,
)
from batchproof_engines.adapters.openai.answer_parser import AnswerParser, UnreadableAnswer
from batchproof_engines.adapters.openai.client import Exchange
from batchproof_engines.adapters.openai.dialect import Dialect
from batchproof_engines.adapters.openai.failures import Refused


def token_events(
    request: Request, exchange: Exchange, dialect: Dialect, *, at_once: bool = False
) -> Iterator[TokenEvent]:
    """Yields an event for each token; the last one has the finish reason.

    The last token is in the last event, unless it was yielded before: a token is held back until the
    next one arrives or, `at_once`, only if it may be the last. Raises `EngineFailed`, and `Cut` if the
    connection was cut on this side.
    """
    request_id, eos = request.request_id, request.eos_token_ids
    parser = AnswerParser(dialect.vocab_size, dialect.tokens)
    held: int | None = None
    num_tokens = 0
    try:
        for token in _tokens(request, exchange, dialect, parser):
            if held is not None:
                yield TokenEvent(request_id, held)
            num_tokens, held = num_tokens + 1, token
            if token in eos and dialect.eos == "client":
                break  # the rest is not needed
            if at_once and token not in eos and num_tokens < request.max_new_tokens:
                yield TokenEvent(request_id, token)
                held = None
    except Refused as refusal:
        yield TokenEvent.refused(request_id, str(refusal))
        return
    except UnreadableAnswer as error:
        raise exchange.failed(str(error)) from None
    finally:
        exchange.close()
    is_ended_here = held in eos and dialect.eos == "client"
    reason = FinishReason.STOP if is_ended_here else parser.finish_reason
    assert reason is not None, "the parser rejects an answer without a reason"
    yield TokenEvent(request_id, held, reason)


def completion_of(request: Request, events: Iterable[TokenEvent]) -> Completion:
    """Returns the completion that consists of all events of a request."""
    tokens: list[int] = []
    for event in events:
        if event.token_id is not None:
            tokens.append(event.token_id)
        if event.finish_reason is not None:
            return Completion(request.request_id, tuple(tokens), event.finish_reason, event.error)
    raise AssertionError("the last event has the reason")


def _tokens(
    request: Request, exchange: Exchange, dialect: Dialect, parser: AnswerParser
) -> Iterator[int]:
    answers = exchange.read_events() if dialect.is_streamed else iter([exchange.read()])
    for answer in answers:
        yield from parser.feed(answer)
    yield from parser.end(request)
