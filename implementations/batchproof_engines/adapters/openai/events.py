"""The server's answer to one request, as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchproof.api import Completion, FinishReason, Request, SamplingParams, TokenEvent, TokenLogprobs
from batchproof_engines.adapters.openai.answer_parser import AnswerParser, Token, UnreadableAnswer
from batchproof_engines.adapters.openai.client import Exchange, Refused
from batchproof_engines.adapters.openai.dialect import Dialect
from batchproof_engines.stopping import stops


def token_events(
    request: Request, exchange: Exchange, dialect: Dialect, *, at_once: bool = False
) -> Iterator[TokenEvent]:
    """Yields an event for each token; the last one has the finish reason.

    The last token is in the last event, unless it was yielded before: a token is held back until the
    next one arrives or, `at_once`, only if it may be the last. Raises `EngineFailed`, and `Cut` if the
    connection was cut on this side.
    """
    request_id, asked = request.request_id, request.sampling or SamplingParams()
    parser = AnswerParser(dialect.vocab_size, dialect.tokens, asked.logprobs)
    held: TokenEvent | None = None
    tokens: list[int] = []
    is_ended_here = False
    try:
        for token, logprobs in _tokens(request, exchange, dialect, parser):
            if held is not None:
                yield held
            held = TokenEvent(request_id, token, logprobs=logprobs)
            tokens.append(token)
            is_end = token in request.eos_token_ids or stops(request, tokens)
            is_ended_here = is_end and dialect.eos == "client"
            if is_ended_here:
                break  # the rest is not needed
            if at_once and not is_end and len(tokens) < request.max_new_tokens:
                yield held
                held = None
    except Refused as refusal:
        yield TokenEvent.refused(request_id, str(refusal))
        return
    except UnreadableAnswer as error:
        raise exchange.failed(str(error)) from None
    finally:
        exchange.close()
    reason = FinishReason.STOP if is_ended_here else parser.finish_reason
    assert reason is not None, "the parser rejects an answer without a reason"
    last = TokenEvent(request_id, None) if held is None else held
    yield last._replace(finish_reason=reason)


def completion_of(request: Request, events: Iterable[TokenEvent]) -> Completion:
    """Returns the completion that consists of all events of a request."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for event in events:
        if event.token_id is not None:
            tokens.append(event.token_id)
        if event.logprobs is not None:
            logprobs.append(event.logprobs)
        if event.finish_reason is not None:
            what = (request.request_id, tuple(tokens), event.finish_reason, event.error)
            return Completion(*what, logprobs=tuple(logprobs) or None)
    raise AssertionError("the last event has the reason")


def _tokens(
    request: Request, exchange: Exchange, dialect: Dialect, parser: AnswerParser
) -> Iterator[Token]:
    answers = exchange.read_events() if dialect.is_streamed else iter([exchange.read()])
    for answer in answers:
        yield from parser.feed(answer)
    for token in parser.end(request):
        yield token, None
