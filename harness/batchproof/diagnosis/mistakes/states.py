"""Mistakes with recurrent states: what can be done to them around a sequence's passes, and which of
that gives the engine's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from batchproof.diagnosis.counterfactual import Suspect
from batchproof.diagnosis.state_replay import (
    CONVOLUTION,
    KINDS,
    RECURRENCE,
    Change,
    Pass,
    StateReplay,
    layers_with_states,
    states,
    with_states_of,
)

Edit = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class StateMistake:
    """A mistake, in words an engineer can act on, and what it does to the states."""

    text: str
    change: Change
    is_rounding: bool = False


@dataclass(frozen=True)
class Before(Change):
    """Edits the cache that these passes start from."""

    numbers: Sequence[int]
    edit: Edit

    def before(self, number: int, cache: Any) -> Any:
        return self.edit(cache) if number in self.numbers else cache


@dataclass(frozen=True)
class Lost(Change):
    """Keeps the states from before these passes."""

    numbers: Sequence[int]

    def after(self, number: int, old: Any, cache: Any) -> Any:
        if number not in self.numbers:
            return cache
        return cleared(cache, KINDS) if old is None else with_states_of(cache, old)


@dataclass(frozen=True)
class Doubled(Change):
    """Adds what these passes add to the recurrence a second time."""

    numbers: Sequence[int]

    def after(self, number: int, old: Any, cache: Any) -> Any:
        if number in self.numbers and old is None:
            for new in states(cache, RECURRENCE):
                new.mul_(2)
        elif number in self.numbers:
            for new, was in zip(states(cache, RECURRENCE), states(old, RECURRENCE), strict=True):
                new.add_(new - was)
        return cache


@dataclass(frozen=True)
class FedAgain(Change):
    """Feeds the last token of a pass to the states again."""

    replay: StateReplay
    number: int
    last: Pass

    def after(self, number: int, old: Any, cache: Any) -> Any:  # noqa: ARG002
        if number != self.number:
            return cache
        tokens = self.last.token_ids[-1:]
        again = replace(self.last, context_len=self.last.end - 1, token_ids=tokens)
        fed, _ = self.replay.fed(again, cache)
        return with_states_of(cache, fed)


@dataclass(frozen=True)
class PushedOut(Change):
    """Shifts zeros into the convolution's window behind the first pass."""

    num_pads: int

    def after(self, number: int, old: Any, cache: Any) -> Any:  # noqa: ARG002
        return shifted(cache, -self.num_pads) if number == 0 else cache


def cleared(cache: Any, kinds: Sequence[str]) -> Any:
    """Returns the cache with its states of these kinds set to zero."""
    for each in states(cache, *kinds):
        each.zero_()
    return cache


def shifted(cache: Any, num_tokens: int) -> Any:
    """Returns the cache with its convolutions' windows moved; zeros come in from behind if they move
    to earlier tokens, as with `num_tokens` below 0."""
    for each in states(cache, CONVOLUTION):
        each.copy_(each.roll(num_tokens, dims=-1))
        if num_tokens < 0:
            each[..., num_tokens:] = 0
    return cache


def narrowed(cache: Any, width: int) -> Any:
    for each in states(cache, CONVOLUTION):
        each[..., : 2 - width or None] = 0
    return cache


def rounded(cache: Any, dtype: torch.dtype) -> Any:
    if cache is not None:
        for each in states(cache, RECURRENCE):
            each.copy_(each.to(dtype).to(each.dtype))
    return cache


def with_swapped_layers(cache: Any) -> Any:
    layers = layers_with_states(cache)[:2]
    if len(layers) == 2:
        first, second = (layer.recurrent_states for layer in layers)
        layers[0].recurrent_states, layers[1].recurrent_states = second, first
    return cache


MOST = 1 << 20  # passes
MOST_TENANTS = 6  # former ones whose state is tried
MOST_PASSES = 24  # before the first wrong output, each of which is tried
MOST_OTHERS = 6  # sequences whose states behind a prefix are tried
MOST_BORDERS = 8  # of each
WORDS = {KINDS: "states", (RECURRENCE,): "recurrence", (CONVOLUTION,): "window of the convolution"}


def state_mistakes(replay: StateReplay, suspect: Suspect) -> Iterator[StateMistake]:
    """Yields mistakes, the most common first."""
    passes = replay.passes(suspect.seq)
    wrong = int(suspect.honest.samples[0])
    num_right = next(number for number, each in enumerate(passes) if each.last_cell >= wrong)
    yield from _taken_over(replay, suspect, passes)
    yield from _left_over(replay, suspect, passes)
    yield from _at_chunks(passes)
    yield from _of_neighbours(replay, suspect, passes[: num_right + 1])
    yield from _once(replay, passes[: num_right + 1])
    yield from _always()


def _taken_over(
    replay: StateReplay, suspect: Suspect, passes: Sequence[Pass]
) -> Iterator[StateMistake]:
    """Yields mistakes of what a sequence has behind the tokens that it took over, if it took any."""
    table, num_taken = suspect.table, len(passes[0].token_ids)
    if not table.is_reused[passes[0].last_cell]:
        return
    where = f"behind the {num_taken} tokens it took over"
    change = Before([1], partial(cleared, kinds=KINDS))
    yield StateMistake(f"{where} the states are empty", change)
    earlier = (table.seq[table.step <= passes[0].step]).unique().tolist()
    for number in earlier[: -MOST_OTHERS - 1 : -1]:
        fed = table.sequences[number]
        own = table.index[(table.seq == number) & (table.step < passes[1].step)]
        last, size = int(own.max()) + 1, suspect.config.block_size
        borders = [*range(size, last + 1, size)][-MOST_BORDERS:]
        for end in sorted({num_taken, *borders, fed.num_prompt_tokens, last}):
            tokens = fed.token_ids[:end]
            if not 0 < end <= last or tokens == passes[0].token_ids:
                continue
            theirs = replay.behind(tokens)
            change = Before([1], partial(with_states_of, other=theirs))
            whose = "it had before" if number == suspect.seq else f"{fed.request.request_id!r} had"
            yield StateMistake(f"{where} it has the states that {whose} behind {end}", change)


def _left_over(replay: StateReplay, suspect: Suspect, passes: Sequence[Pass]) -> Iterator[StateMistake]:
    """Yields mistakes of what a sequence starts from."""
    table, start = suspect.table, passes[0].step
    ended = []
    for number, fed in enumerate(table.sequences):
        theirs = table.step[table.seq == number]
        if number == suspect.seq and int(theirs.min()) < start:
            ended.append((start, number, "it had itself before it was preempted"))
        elif number != suspect.seq and len(theirs) and int(theirs.max()) < start:
            ended.append((int(theirs.max()), number, f"{fed.request.request_id!r} left"))
    for _, number, whose in sorted(ended, reverse=True)[:MOST_TENANTS]:
        left = replay.kept(number, start)
        for kinds, words in WORDS.items():
            change = Before([0], partial(_started, replay=replay, left=left, kinds=kinds))
            yield StateMistake(f"it starts from the {words} that {whose}", change)


def _started(_: Any, replay: StateReplay, left: Any, kinds: Sequence[str]) -> Any:
    return with_states_of(replay.empty(), left, kinds)


def _at_chunks(passes: Sequence[Pass]) -> Iterator[StateMistake]:
    """Yields mistakes of each chunk of several tokens behind others, and of the prompt's end."""
    numbers = [number for number, each in enumerate(passes) if each.is_later_chunk]
    if numbers:
        for kinds, words in WORDS.items():
            change = Before(numbers, partial(cleared, kinds=kinds))
            yield StateMistake(f"each later chunk of a prompt starts without the {words}", change)
        late = Before(numbers, partial(shifted, num_tokens=1))
        yield StateMistake("at a chunk border the convolution's window is one token late", late)
        for width in (2, 3, 4):
            change = Before(numbers, partial(narrowed, width=width))
            text = f"at a chunk border the convolution sees fewer than {width} tokens"
            yield StateMistake(text, change)
        for longest in (3, 7, 15):
            short = [n for n in numbers if len(passes[n].token_ids) <= longest]
            text = f"chunks of at most {longest} tokens leave no state"
            yield StateMistake(text, Lost(short))
    for num_pads in (1, 2, 3):
        text = f"{num_pads} pads behind the prompt are in the convolution's window"
        yield StateMistake(text, PushedOut(num_pads))


def _of_neighbours(
    replay: StateReplay, suspect: Suspect, passes: Sequence[Pass]
) -> Iterator[StateMistake]:
    """Yields mistakes in which a pass starts from a live neighbour's states."""
    table = suspect.table
    for number, each in reversed([*enumerate(passes)][-MOST_PASSES:]):
        for other in table.seq[table.step == each.step].unique().tolist():
            theirs = replay.kept(other, each.step) if other != suspect.seq else None
            if theirs is None or number == 0:
                continue
            name = table.sequences[other].request.request_id
            for kinds, words in WORDS.items():
                change = Before([number], partial(with_states_of, other=theirs, kinds=kinds))
                text = f"behind {each.context_len} tokens it has the {words} of {name!r}"
                yield StateMistake(text, change)


def _once(replay: StateReplay, passes: Sequence[Pass]) -> Iterator[StateMistake]:
    """Yields mistakes of a single pass, those nearest to the wrong output first."""
    for number, each in reversed([*enumerate(passes)][-MOST_PASSES:]):
        where = f"positions {each.context_len} to {each.end - 1}"
        if number:
            for kinds, words in WORDS.items():
                change = Before([number], partial(cleared, kinds=kinds))
                yield StateMistake(f"behind {each.context_len} tokens the {words} is lost", change)
            yield StateMistake(
                f"behind {each.context_len} tokens two layers have each other's recurrence",
                Before([number], with_swapped_layers),
            )
        yield StateMistake(f"the states do not keep what {where} change", Lost([number]))
        yield StateMistake(f"what {where} add to the recurrence counts twice", Doubled([number]))
        again = FedAgain(replay, number, each)
        yield StateMistake(f"the token of position {each.end - 1} is fed to the states twice", again)


def _always() -> Iterator[StateMistake]:
    """Yields mistakes of every pass."""
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        change = Before(range(MOST), partial(rounded, dtype=dtype))
        yield StateMistake(f"the recurrence is kept in {name}", change, is_rounding=True)
