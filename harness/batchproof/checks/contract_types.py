"""Is what an engine gave of the types the contract names? Checked before anything is compared."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from batchproof.api import Completion, FinishReason, TokenEvent
from batchproof.checks.verdict import ConformanceFailure, rule
from batchproof.promises import Promise


@rule("types")
def checked_completions(given: object) -> tuple[Completion, ...]:
    """Raises `ConformanceFailure` for anything but an iterable of well-typed completions."""
    if not isinstance(given, Iterable):
        raise ConformanceFailure(
            Promise.P4,
            f"generate returned a {type(given).__name__}, but should return a list of Completions",
        )
    completions = tuple(given)
    for each in completions:
        if not isinstance(each, Completion):
            raise ConformanceFailure(
                Promise.P4,
                f"generate returned a {type(given).__name__} that holds a {type(each).__name__}, "
                f"but should return a list of Completions",
            )
        slip = _slip(each.request_id, each.token_ids, each.finish_reason, each.logits)
        if slip is not None:
            raise ConformanceFailure(
                Promise.P4, f"the completion of request {each.request_id!r} has {slip}"
            )
    return completions


def _slip(request_id: object, token_ids: object, reason: object, logits: object) -> str | None:
    if not isinstance(request_id, str):
        return f"a request_id of type {type(request_id).__name__}, but should be a str"
    if not isinstance(token_ids, tuple | list):
        return f"token_ids of type {type(token_ids).__name__}, but should be a tuple of ints"
    strange = [token for token in token_ids if type(token) is not int]
    if strange:
        return f"a token of type {type(strange[0]).__name__} ({strange[0]!r}), but should be an int"
    if not isinstance(reason, FinishReason):
        return f"finish_reason {reason!r}, but should be a batchproof.api.FinishReason"
    if logits is not None and getattr(logits, "dtype", None) is not torch.float32:
        kind = getattr(logits, "dtype", type(logits).__name__)
        return f"logits of {kind}, but should be a torch.Tensor of float32"
    return None


@rule("event-types")
def checked_events(given: object) -> list[TokenEvent]:
    """Raises `ConformanceFailure` for anything but a list of well-typed events."""
    if isinstance(given, TokenEvent) or not isinstance(given, list | tuple):  # an event is a tuple
        kind = type(given).__name__
        raise ConformanceFailure(
            Promise.P14, f"step returned a {kind}, but should return a list of TokenEvents"
        )
    for each in given:
        if not isinstance(each, TokenEvent):
            raise ConformanceFailure(
                Promise.P14, f"step returned a {type(each).__name__}, but should return TokenEvents"
            )
        slip = _event_slip(each.token_id, each.finish_reason)
        if slip is not None:
            raise ConformanceFailure(Promise.P14, f"an event of request {each.request_id!r} has {slip}")
    return list(given)


def _event_slip(token_id: object, reason: object) -> str | None:
    if token_id is not None and type(token_id) is not int:
        return f"a token_id of type {type(token_id).__name__}, but should be an int"
    if reason is not None and not isinstance(reason, FinishReason):
        return f"finish_reason {reason!r}, but should be a batchproof.api.FinishReason"
    return None
