"""Conversion between messages (`protocol.py`) and the types of the contract."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from batchproof.api import Completion, FinishReason, Request, TokenEvent, TokenLogprobs
from batchproof.workload.sampling_values import plain_values
from batchproof_engines.adapters.piped import protocol


def request_to_json(request: Request) -> protocol.Request:
    """Returns the message of a request; EOS ids are ascending, so that equal requests make equal
    lines."""
    message: protocol.Request = {
        "request_id": request.request_id,
        "prompt_token_ids": list(request.prompt_token_ids),
        "max_new_tokens": request.max_new_tokens,
        "eos_token_ids": sorted(request.eos_token_ids),
    }
    changed = {} if request.sampling is None else plain_values(request.sampling)
    if changed:
        message["sampling"] = cast(protocol.Sampling, changed)
    return message


def completions_of(answer: protocol.Generated) -> list[Completion]:
    """Returns all completions of the answer; the suite checks their number."""
    return [
        Completion(
            each.request_id,
            each.token_ids,
            FinishReason(each.finish_reason),
            each.error,
            logprobs=_each(each.logprobs),
            prompt_logprobs=_each(each.prompt_logprobs),
        )
        for each in answer.completions
    ]


def events_of(answer: protocol.Stepped) -> list[TokenEvent]:
    return [
        TokenEvent(
            each.request_id,
            each.token_id,
            None if each.finish_reason is None else FinishReason(each.finish_reason),
            each.error,
            _logprobs(each.logprobs),
        )
        for each in answer.events
    ]


def _each(given: Iterable[protocol.Logprobs | None] | None) -> Any:
    return None if given is None else tuple(map(_logprobs, given))


def _logprobs(given: protocol.Logprobs | None) -> TokenLogprobs | None:
    return None if given is None else TokenLogprobs(given.logprob, given.rank, given.top)
