"""Finds the size from which on answers are wrong, by reruns with less of one thing: a counter, a ring
or a table that is too small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from batchproof.diagnosis.reruns import OutOfTimeError, Reruns, Without, only
from batchproof.workload.workloads import Workload

LEAST = 24  # smaller sizes are met by any workload
COUNTERS = (7, 8, 15, 16)  # bits

Sized = Callable[[int], Workload]


def size_words(reruns: Reruns) -> str | None:
    """Returns the size that is too much, and the one below, at which it is right; None if less of
    nothing makes the answer right, or no time is left."""
    for words, most, sized in _sizes(reruns):
        try:
            size = _least_wrong(lambda n, make=sized: reruns.is_wrong_in(make(n)), most)  # type: ignore[misc]
        except OutOfTimeError:
            return None
        if size is not None:
            return f"{words.format(size - 1)}: right; {words.format(size)}: wrong{_known(size)}"
    return None


def _sizes(reruns: Reruns) -> Iterator[tuple[str, int, Sized]]:
    """Yields what there may be too much of, how much there was, and how it is asked with less."""
    request, here = reruns.symptom.request, reruns.here
    if reruns.is_right.get(Without.NEIGHBOURS):
        requests = tuple(chain.from_iterable(each.requests for each in reruns.workloads))
        together = replace(here, requests=requests, arrivals=None, aborts=())
        yield (
            "{} at once",
            min(here.config.max_num_seqs, len(here.requests)),
            lambda n: here.with_config(max_num_seqs=n),
        )
        yield "{} requests on one engine", len(requests), lambda n: together.with_requests(requests[:n])
        return
    alone, prompt = only(here, request), request.prompt_token_ids
    for words, most, make in (
        (
            "an answer of {} tokens",
            request.max_new_tokens,
            lambda n: replace(request, max_new_tokens=n),
        ),
        ("a prompt of {} tokens", len(prompt), lambda n: replace(request, prompt_token_ids=prompt[:n])),
    ):
        yield words, most, lambda n, change=make: alone.with_requests([change(n)])


def _least_wrong(is_wrong: Callable[[int], bool], most: int) -> int | None:
    """Returns the least size that is wrong, if what is wrong is right when halved often enough; powers
    of two, and one above, are tried first."""
    if most <= LEAST or not is_wrong(most):
        return None
    high = most
    while high > 1 and is_wrong(low := 1 << ((high - 1).bit_length() - 1)):
        high = low
    if high <= LEAST:
        return None
    while high - low > 1:
        middle = low + 1 if low & (low - 1) == 0 else (low + high) // 2
        low, high = (low, middle) if is_wrong(middle) else (middle, high)
    return high


def _known(size: int) -> str:
    for bits in COUNTERS:
        if size - 1 in (1 << bits, (1 << bits) - 1):
            return f" (a counter of {bits} bits holds no more)"
    return ""
