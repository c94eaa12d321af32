"""Checks that values of an engine have the types of the contract, before anything is compared."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from batchproof.api import Completion, FinishReason, RowRecord, StepRecord, TokenEvent, TokenLogprobs
from batchproof.checks.broken import broken, require
from batchproof.findings.finding import Finding, Rule, found

Slip = tuple[str, str]  # what a field is, and what it should be


def checked_completions(given: object) -> tuple[Completion, ...]:
    """Returns the completions as a tuple. Raises `BrokenPromise` for anything but an iterable of
    well-typed completions."""
    kind = type(given).__name__
    if not isinstance(given, Iterable):
        raise broken(Rule.RETURN_TYPE, got=kind)
    completions = tuple(given)
    require(finding for each in completions for finding in _of_completion(each, kind))
    return completions


def _of_completion(each: object, kind: str) -> Iterator[Finding]:
    if not isinstance(each, Completion):
        yield found(Rule.COMPLETION_TYPE, got=kind, item=type(each).__name__)
        return
    slip = _slip(each.request_id, each.token_ids, each.logits) or _reason_slip(each.finish_reason)
    slip = slip or _logprobs_slip(each.logprobs if each.logprobs is not None else ())
    slip = slip or _prompt_logprobs_slip(each.prompt_logprobs)
    if slip is not None:
        yield found(Rule.COMPLETION_FIELD, str(each.request_id), got=slip[0], should_be=slip[1])


def _slip(request_id: object, token_ids: object, logits: object) -> Slip | None:
    if not isinstance(request_id, str):
        return f"a request_id of type {type(request_id).__name__}", "a str"
    if not isinstance(token_ids, tuple | list):
        return f"token_ids of type {type(token_ids).__name__}", "a tuple of ints"
    strange = [token for token in token_ids if type(token) is not int]
    if strange:
        return f"a token of type {type(strange[0]).__name__} ({strange[0]!r})", "an int"
    if logits is not None and getattr(logits, "dtype", None) is not torch.float32:
        kind = getattr(logits, "dtype", type(logits).__name__)
        return f"logits of {kind}", "a torch.Tensor of float32"
    return None


def _logprobs_slip(given: object) -> Slip | None:
    if not isinstance(given, tuple | list):
        return f"logprobs of type {type(given).__name__}", "a tuple of TokenLogprobs"
    strange = [each for each in given if not isinstance(each, TokenLogprobs)]
    if strange:
        return f"logprobs with a {type(strange[0]).__name__}", "a tuple of TokenLogprobs"
    pairs = [pair for each in given for pair in ((each.rank or 0, each.logprob), *each.top)]
    wrong = [each for each in pairs if type(each[0]) is not int or type(each[1]) is not float]
    return (f"logprobs with {wrong[0]!r}", "an int and a float") if wrong else None


def _prompt_logprobs_slip(given: object) -> Slip | None:
    if isinstance(given, tuple | list):
        given = [each for each in given if each is not None]
    return None if given is None else _logprobs_slip(given)


def checked_events(given: object) -> list[TokenEvent]:
    """Returns the events. Raises `BrokenPromise` for anything but a list of well-typed ones."""
    events = event_list(given)
    require(finding for each in events for finding in _of_event(each))
    return [*events]


def _of_event(each: object) -> Iterator[Finding]:
    if not isinstance(each, TokenEvent):
        yield found(Rule.EVENT_TYPE, got=type(each).__name__)
        return
    slip: Slip | None = None
    if each.token_id is not None and type(each.token_id) is not int:
        slip = f"a token_id of type {type(each.token_id).__name__}", "an int"
    if slip is None and each.finish_reason is not None:
        slip = _reason_slip(each.finish_reason)
    slip = slip or _logprobs_slip(() if each.logprobs is None else (each.logprobs,))
    if slip is not None:
        yield found(Rule.EVENT_FIELD, str(each.request_id), got=slip[0], should_be=slip[1])


def event_list(given: object) -> Sequence[Any]:
    """Returns what a step gave. Raises `BrokenPromise` for anything but a list, whatever is in it."""
    if isinstance(given, TokenEvent) or not isinstance(given, list | tuple):  # an event is a tuple
        raise broken(Rule.STEP_TYPE, got=type(given).__name__)
    return given


def _reason_slip(reason: object) -> Slip | None:
    is_known = isinstance(reason, FinishReason)
    return None if is_known else (f"finish_reason {reason!r}", "a batchproof.api.FinishReason")


def checked_trace(given: object) -> Sequence[StepRecord]:
    """Returns the trace. Raises `BrokenPromise` for anything but a sequence of `StepRecord`s."""
    if not isinstance(given, Sequence):
        raise broken(Rule.TRACE_TYPE, got=f"a {type(given).__name__}")
    for each in given:
        if not isinstance(each, StepRecord):
            raise broken(Rule.TRACE_TYPE, got=f"a {type(given).__name__} of {type(each).__name__}")
    for row in given[-1].rows if given else ():
        if not isinstance(row, RowRecord):
            raise broken(Rule.TRACE_TYPE, got=f"a StepRecord with a row of {type(row).__name__}")
    return given
