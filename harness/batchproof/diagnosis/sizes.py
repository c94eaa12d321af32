"""Finds the size from which on answers are wrong, by reruns with less of one thing: a counter, a ring
or a table that is too small."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

from batchproof.diagnosis.reruns import OutOfTimeError, Reruns, Without, only
from batchproof.workload.workloads import Workload

LEAST = 24  # smaller sizes are met by any workload
COUNTERS = (7, 8, 15, 16)  # bits


def size_words(reruns: Reruns) -> str | None:
    """Returns the size that is too much and one below at which all is right, as close as time allows;
    None if less of nothing makes it right."""
    for words, most, sized in _sizes(reruns):
        found = [(0, most)]
        with suppress(OutOfTimeError):
            found.extend(_narrowed(partial(_is_wrong, reruns, sized), most))
        low, high = found[-1]
        if low and high > LEAST:
            bits = [n for n in COUNTERS if high - low == 1 and low in (1 << n, (1 << n) - 1)]
            counter = f", as with a counter of {bits[0]} bits" if bits else ""
            return f"{words.format(low)}: right; {words.format(high)}: wrong{counter}"
    return None


def _is_wrong(reruns: Reruns, sized: Callable[[int], Workload], size: int) -> bool:
    calls = reruns.rerunner.run([sized(size)])
    return calls is not None and bool(reruns.symptoms_of(calls, reruns.rerunner.trial.oracle))


def _sizes(reruns: Reruns) -> Iterator[tuple[str, int, Callable[[int], Workload]]]:
    """Yields what there may be too much of, how much there was, and how less is asked for."""
    one, here = reruns.symptom.request, reruns.here
    if reruns.is_right.get(Without.NEIGHBOURS):
        every = tuple(chain.from_iterable(each.requests for each in reruns.workloads))
        at_once = min(here.config.max_num_seqs, len(here.requests))
        yield "{} at once", at_once, lambda n: here.with_config(max_num_seqs=n)
        all_together = here.together().with_requests(every)
        yield "{} requests", len(every), lambda n: all_together.with_requests(every[:n])
    else:
        alone, prompt = only(here, one), one.prompt_token_ids
        cut, short = "an answer of {} tokens", "a prompt of {} tokens"
        yield cut, one.max_new_tokens, lambda n: only(alone, replace(one, max_new_tokens=n))
        yield short, len(prompt), lambda n: only(alone, replace(one, prompt_token_ids=prompt[:n]))


def _narrowed(is_wrong: Callable[[int], bool], most: int) -> Iterator[tuple[int, int]]:
    """Yields ever closer pairs of a size that is right and one that is wrong: first powers of two, then
    one above, then those between."""
    high = most
    if high <= LEAST or not is_wrong(high):
        return
    while is_wrong(low := 1 << (high - 1).bit_length() - 1):
        high = low
        if high <= LEAST:
            return
    yield low, high
    while high - low > 1:
        middle = low + 1 if low.bit_count() == 1 else (low + high) // 2
        low, high = (low, middle) if is_wrong(middle) else (middle, high)
        yield low, high
