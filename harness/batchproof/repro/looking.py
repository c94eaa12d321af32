"""Functions that scripts are made of: what is wrong with answers, logits and events.

As in `serving.py`. Each `wrong_...` yields a line for each thing that is wrong, and nothing once the
engine is repaired.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    TokenEvent,
)
from batchproof.repro.serving import told


def wrong_answers(
    completions: Sequence[Completion], expected: Sequence[Completion | None]
) -> Iterator[str]:
    """None is expected of a bad request: an error."""
    if len(completions) != len(expected):
        yield f"{len(completions)} completions for {len(expected)} requests"
    for got, right in zip(completions, expected, strict=False):
        if right is None:
            if got.finish_reason is not FinishReason.ERROR:
                yield f"got {told(got)}, but should be an error"
        elif told(got) != told(right):
            yield f"got {told(got)}, but should be {told(right)}"


def wrong_beyond_rounding(
    model: PreTrainedModel,
    requests: Sequence[Request],
    completions: Sequence[Completion],
    expected: Sequence[Completion | None],
    bound: float,
) -> Iterator[str]:
    """As `wrong_answers`, but where the best tokens are equally good within rounding, each is right."""
    if len(completions) != len(expected):
        yield f"{len(completions)} completions for {len(expected)} requests"
    for request, got, right in zip(requests, completions, expected, strict=False):
        lines = list(wrong_answers([got], [right]))
        is_whole = right is not None and len(got.token_ids) == len(right.token_ids)
        if lines and is_whole and got.finish_reason is FinishReason.LENGTH:
            exact = exact_logits(model, request, got)
            chosen = exact.gather(-1, torch.tensor(got.token_ids)[:, None])[:, 0]
            if float((exact.max(dim=-1).values - chosen).max()) <= bound:
                continue
        yield from lines


@torch.inference_mode()
def exact_logits(model: PreTrainedModel, request: Request, completion: Completion) -> Tensor:
    """What each token should have been chosen from: one plain float64 pass over prompt and answer."""
    exact = copy.deepcopy(model).double()
    tokens = [*request.prompt_token_ids, *completion.token_ids[:-1]]
    logits = exact(input_ids=torch.tensor([tokens], device=exact.device), use_cache=False).logits
    return logits[0, len(request.prompt_token_ids) - 1 :].cpu()


def centred(logits: Tensor) -> Tensor:
    """A constant added to all logits changes nothing, so it is taken away."""
    logits = logits.detach().cpu().double()
    return logits - logits.mean(dim=-1, keepdim=True)


def wrong_logits(
    model: PreTrainedModel,
    requests: Sequence[Request],
    completions: Sequence[Completion],
    bound: float,
    rms_bound: float,
) -> Iterator[str]:
    """`bound` is what rounding can explain of the largest difference to float64."""
    for request, got in zip(requests, completions, strict=True):
        if not got.token_ids:
            continue
        exact = exact_logits(model, request, got)
        if got.logits is None or got.logits.shape != exact.shape:
            yield f"{got.request_id!r}: no logits of shape {tuple(exact.shape)}"
            continue
        off = centred(got.logits) - centred(exact)
        worst, rms = float(off.abs().max()), math.sqrt(float(off.pow(2).mean()))
        if not (worst <= bound and rms <= rms_bound):  # `not`: NaN is wrong, too
            yield (
                f"{got.request_id!r}: off by {worst:.3g} at worst (rounding: {bound:.2g}), "
                f"by {rms:.3g} on average ({rms_bound:.2g})"
            )


def wrong_refusals(completion: Completion, words: Sequence[Sequence[str]]) -> Iterator[str]:
    """An error is wanted that holds a word of each group."""
    message = (completion.error or "").lower()
    if completion.finish_reason is not FinishReason.ERROR or completion.token_ids:
        yield f"got {told(completion)}, but should be refused"
    elif not message or not all(any(word.lower() in message for word in group) for group in words):
        yield f"got {told(completion)}, but the error should name {words}"


def wrong_differences(
    first: Completion, second: Completion, cut: int | None, bound: float
) -> Iterator[str]:
    """Two answers that must be one and the same: token for token and, at bound 0, bit for bit."""
    if first.token_ids[:cut] != second.token_ids[:cut] or (
        cut is None and first.finish_reason != second.finish_reason
    ):
        yield f"{told(first)} is not {told(second)}"
    elif first.logits is not None and second.logits is not None:
        a, b = first.logits[:cut], second.logits[:cut]
        moved = (centred(a) - centred(b)).abs().amax(dim=-1)
        if not torch.equal(a, b) and not bool((moved <= bound).all()):
            yield f"the logits of {first.request_id!r} differ, step by step, by {moved.tolist()}"


def wrong_equality(first: Completion, second: Completion, bound: float) -> Iterator[str]:
    """Two answers whose logits must differ."""
    assert first.logits is not None, "asked for by return_logits"
    assert second.logits is not None, "asked for by return_logits"
    moved = float((centred(first.logits) - centred(second.logits)).abs().max())
    if moved <= bound:
        yield f"the logits of {first.request_id!r} differ by {moved:.3g}; rounding reaches {bound:.2g}"


def wrong_stream(
    requests: Sequence[Request], bad: Sequence[str], events: Sequence[tuple[int, TokenEvent]]
) -> Iterator[str]:
    """The last event of a request, and no other, ends it; all others carry a token; no strangers."""
    for request in requests:
        own = [event for _, event in events if event.request_id == request.request_id]
        reasons = [event.finish_reason for event in own]
        if request.request_id in bad:
            if reasons != [FinishReason.ERROR] or not own[0].error:
                yield f"bad request {request.request_id!r}: {own}, but should be one ERROR with words"
            continue
        is_closed = bool(own) and reasons[-1] is not None and not any(reasons[:-1])
        if not is_closed or any(event.token_id is None for event in own):
            yield f"request {request.request_id!r}: {own}"
        if len(own) > request.max_new_tokens:
            yield f"request {request.request_id!r}: {len(own)} events, {request.max_new_tokens} allowed"
    known = {request.request_id for request in requests}
    yield from (f"a stranger: {event}" for _, event in events if event.request_id not in known)


def wrong_cancels(
    completions: Sequence[Completion],
    expected: Sequence[Completion | None],
    aborts: Sequence[tuple[str, int]],
    events: Sequence[tuple[int, TokenEvent]],
) -> Iterator[str]:
    """A cancelled request got no token afterwards; before, and all others, what is right."""
    last = dict(aborts)
    for got, right in zip(completions, expected, strict=True):
        if right is not None and got.finish_reason is FinishReason.ABORTED and got.request_id in last:
            if got.token_ids != right.token_ids[: len(got.token_ids)]:
                yield f"got {told(got)}, but should be a beginning of {told(right)}"
        else:
            yield from wrong_answers([got], [right])
    for step, event in events:
        if event.token_id is not None and step >= last.get(event.request_id, step + 1):
            yield f"{event.request_id!r} was cancelled before step {last[event.request_id]}: {event}"


def wrong_types(completions: object) -> Iterator[str]:
    """A list of Completions, of Python ints and members of FinishReason, is wanted."""
    if not isinstance(completions, Iterable):
        yield f"{completions!r} is no list"
        return
    for each in completions:
        is_right = isinstance(each, Completion) and (
            isinstance(each.request_id, str)
            and isinstance(each.token_ids, tuple | list)
            and all(type(token) is int for token in each.token_ids)
            and isinstance(each.finish_reason, FinishReason)
            and (each.logits is None or getattr(each.logits, "dtype", None) is torch.float32)
        )
        if not is_right:
            yield f"not of the types of batchproof.api: {each!r}"


def wrong_repeats(
    calls: Sequence[Sequence[Request]], answers: Sequence[Sequence[Completion]]
) -> Iterator[str]:
    """Calls that ask the same are answered the same."""
    for index, (requests, completions) in enumerate(zip(calls, answers, strict=True)):
        first = answers[list(calls).index(requests)]
        for got, before in zip(completions, first, strict=False):
            if told(got) != told(before):
                yield f"call {index}: {told(got)}, but before {told(before)}"
