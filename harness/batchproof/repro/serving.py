"""Functions that scripts are made of: how an engine is served, and how that is told.

They are copied word for word, so each may use the standard library, torch, `batchproof.api` and the
others of these modules, and no global of its own module.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    SteppingEngine,
    TokenEvent,
)


def serve(
    engine: SteppingEngine,
    requests: Sequence[Request],
    arrivals: Sequence[int],
    aborts: Sequence[tuple[str, int]],
    max_steps: int,
) -> list[tuple[int, TokenEvent]]:
    """The events, each with its step. Arrivals and aborts are the steps before which they happen."""
    events: list[tuple[int, TokenEvent]] = []
    last_action = max([*arrivals, *(step for _, step in aborts)], default=0)
    step = 0
    while step <= last_action or engine.has_unfinished:
        if step == max_steps:
            give_up(f"after {step} steps the engine still has unfinished requests")
        for request, arrival in zip(requests, arrivals, strict=True):
            if arrival == step:
                engine.add(request)
        for request_id, when in aborts:
            if when == step:
                engine.abort(request_id)
        if engine.has_unfinished:
            events += [(step, event) for event in engine.step()]
        step += 1
    return events


def assemble(
    requests: Sequence[Request],
    events: Iterable[tuple[int, TokenEvent]],
    aborts: Iterable[tuple[str, int]],
) -> list[Completion]:
    """Each request's completion from its events."""
    completions = []
    for request in requests:
        own = [event for _, event in events if event.request_id == request.request_id]
        ends = [event for event in own if event.finish_reason]
        was_aborted = any(request_id == request.request_id for request_id, _ in aborts)
        reason = FinishReason.ABORTED if was_aborted else FinishReason.ERROR
        tokens = tuple(event.token_id for event in own if event.token_id is not None)
        error = ends[-1].error if ends else "its events never named a finish reason"
        reason = (ends[-1].finish_reason if ends else None) or reason
        completions.append(Completion(request.request_id, tokens, reason, error))
    return completions


def give_up(why: str) -> None:
    """Scripts have one of their own."""
    raise SystemExit(why)


def limit_time(seconds: float) -> None:
    """0: no more. There is no limit where there is no such timer."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda *_: give_up(f"no end within {seconds:g} s"))
        signal.setitimer(signal.ITIMER_REAL, seconds)


def told(completion: Completion | None) -> str:
    if completion is None:
        return "an error"
    tokens, error = list(completion.token_ids), completion.error or ""
    return f"{completion.request_id!r} {tokens} ({completion.finish_reason}) {error}".strip()
