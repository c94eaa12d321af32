"""Mistakes with recurrent states: what can be done to them behind a sequence's passes, and which of
that gives the engine's answer."""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from batchproof.diagnosis.counterfactual import CellTable, Predictions, Suspect
from batchproof.findings.causes import Cause
from batchproof.models.catalogue import ModelUnderTest

CONVOLUTION, RECURRENCE = KINDS = ("conv_states", "recurrent_states")
CACHE_PARAMETERS = ("past_key_values", "cache_params")


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a sequence: the tokens fed in a step, behind `context_len` others."""

    step: int
    epoch: int  # how often the sequence was preempted before
    context_len: int
    token_ids: tuple[int, ...]
    last_cell: int

    @property
    def end(self) -> int:
        return self.context_len + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to the states of a sequence; by default nothing.

    Behind the passes of these `numbers`, `edit` takes the cache that the pass started from, None if it
    was empty, and the one that it left, and returns what is kept.
    """

    numbers: Collection[int] = ()
    edit: Callable[[Any, Any], Any] = lambda _old, cache: cache
    start: Any = None  # the cache that the first pass starts from


def carries_states(subject: ModelUnderTest) -> bool:
    """Returns whether transformers keeps a recurrent or a convolution's state for some layer."""
    try:
        return bool(layers_with_states(DynamicCache(config=subject.model.config)))
    except (AttributeError, KeyError):  # a configuration without layers, or with unknown ones
        return False


def passes_of(table: CellTable, seq: int) -> list[Pass]:
    own = (table.seq == seq).nonzero()[:, 0]
    found: list[Pass] = []
    for step in table.step[own].unique().tolist():
        cells = own[table.step[own] == step]
        first, last = int(cells[0]), int(cells[-1])
        tokens = tuple(table.token[cells].tolist())
        found.append(Pass(step, int(table.epoch[first]), int(table.index[first]), tokens, last))
    return found


def passes_around(table: CellTable, seq: int, cell: int) -> list[Pass]:
    """Returns the passes of a sequence from its admission before a cell to its preemption behind it."""
    return [each for each in passes_of(table, seq) if each.epoch == table.epoch[cell]]


class StateReplay:
    """The passes of a suspect around its first wrong output, and what the reference makes of them."""

    def __init__(self, subject: ModelUnderTest, suspect: Suspect) -> None:
        self._model: PreTrainedModel = subject.exact
        taken = inspect.signature(self._model.forward).parameters
        self._cache_name = next(name for name in CACHE_PARAMETERS if name in taken)
        self._has_positions = "position_ids" in taken
        self.suspect, self.table = suspect, suspect.table
        self.passes = passes_around(self.table, suspect.seq, int(suspect.honest.samples[0]))
        self.kept = cache(self._kept)
        self.behind = cache(self._behind)

    @torch.inference_mode()
    def _kept(self, seq: int, step: int) -> Any:
        """Returns the cache of a sequence served honestly, behind its passes before a step, or None."""
        earlier = [each for each in passes_of(self.table, seq) if each.step < step]
        kept: Any = None
        for each in earlier:
            kept, _ = self.fed(each, kept if each.context_len else None)
        return kept

    @torch.inference_mode()
    def logits(self, change: Change) -> Tensor:
        """Returns float64 logits `(n, vocab)` of the suspect's samples behind these passes, given a
        change."""
        found: dict[int, Tensor] = {}
        kept = change.start
        for number, each in enumerate(self.passes):
            old = kept
            kept, found[each.last_cell] = self.fed(each, old)
            kept = change.edit(old, kept) if number in change.numbers else kept
        return torch.stack([found[cell] for cell in self.suspect.honest.samples.tolist()])

    def predictions(self, mistake: "StateMistake") -> Predictions:
        """Yields what the reference gives with the mistake: all outputs, then the first alone."""
        logits = self.logits(mistake.change)
        yield "all", logits
        yield "one", logits[:1]

    @torch.inference_mode()
    def fed(self, each: Pass, kept: Any) -> tuple[Any, Tensor]:
        """Runs a pass upon a copy of a cache. Returns it and the logits (vocab,) of the last token."""
        tokens = torch.tensor([each.token_ids], device=self._model.device)
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": True}
        if self._has_positions:
            positions = torch.arange(each.context_len, each.end, device=self._model.device)
            given["position_ids"] = positions[None]
        given[self._cache_name] = self.empty() if kept is None else copy.deepcopy(kept)
        output = self._model(**given)
        return output[self._cache_name], output.logits[0, -1].cpu().double()

    @torch.inference_mode()
    def _behind(self, token_ids: tuple[int, ...]) -> Any:
        """Returns the cache of a sequence that was fed these tokens at once, alone."""
        return self.fed(Pass(0, 0, 0, token_ids, 0), None)[0]

    def empty(self) -> DynamicCache:
        return DynamicCache(config=self._model.config)


def layers_with_states(cache: Any) -> list[Any]:
    return [each for each in cache.layers if isinstance(each, LinearAttentionCacheLayerMixin)]


def states(cache: Any, *kinds: str) -> Iterator[Tensor]:
    for layer in layers_with_states(cache):
        for kind in kinds:
            yield from (each for each in getattr(layer, kind).values() if each is not None)


_ABOUT_STATES = {
    *KINDS,
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
    "device",
    "dtype",
}


# What follows are edits, as a `Change` has them: of the cache before a pass, and the one behind it.


def with_states_of(_old: Any, cache: Any, other: Any, kinds: Sequence[str] = KINDS) -> Any:
    """Returns the cache with states of these kinds of another one, and with none of the other kinds if
    it had none itself."""
    layers, others = layers_with_states(cache), set(KINDS) - set(kinds)
    is_empty = not any(any(each.has_previous_state.values()) for each in layers)
    copied = _ABOUT_STATES if is_empty else _ABOUT_STATES - others
    for mine, theirs in zip(layers, layers_with_states(other), strict=True):
        for name in vars(theirs).keys() & copied:
            setattr(mine, name, copy.deepcopy(getattr(theirs, name)))
    return cleared(None, cache, others) if is_empty else cache


def unchanged(old: Any, cache: Any) -> Any:
    """Returns the cache with the states that the pass started from."""
    return cleared(None, cache) if old is None else with_states_of(None, cache, old)


def doubled(old: Any, cache: Any) -> Any:
    for place, new in enumerate(states(cache, RECURRENCE)):
        new.add_(new if old is None else new - [*states(old, RECURRENCE)][place])
    return cache


def fed_again(_old: Any, cache: Any, replay: StateReplay, last: Pass) -> Any:
    again = replace(last, context_len=last.end - 1, token_ids=last.token_ids[-1:])
    return with_states_of(None, cache, replay.fed(again, cache)[0])


def cleared(_old: Any, cache: Any, kinds: Collection[str] = KINDS) -> Any:
    for each in states(cache, *kinds):
        each.zero_()
    return cache


def shifted(_old: Any, cache: Any, by: int) -> Any:
    """Moves the convolution's window to older tokens, or to zeros from behind if `by` is negative."""
    for each in states(cache, CONVOLUTION):
        each.copy_(each.roll(by, dims=-1))
        if by < 0:
            each[..., by:] = 0
    return cache


def transposed(_old: Any, cache: Any) -> Any:
    for each in states(cache, RECURRENCE):
        if each.shape[-1] == each.shape[-2]:
            each.copy_(each.mT.clone())
    return cache


def narrowed(_old: Any, cache: Any, width: int) -> Any:
    for each in states(cache, CONVOLUTION):
        each[..., : 2 - width or None] = 0
    return cache


def rounded(_old: Any, cache: Any, dtype: torch.dtype) -> Any:
    for each in states(cache, RECURRENCE):
        each.copy_(each.to(dtype).to(each.dtype))
    return cache


@dataclass(frozen=True, slots=True)
class StateMistake:
    """A mistake, in words an engineer can act on, and what it does to the states."""

    text: str
    change: Change
    is_rounding: bool = False
    cause: Cause = Cause.STATE


EVERY = range(1 << 20)  # passes
MOST_TENANTS = 6  # former ones whose state is tried
MOST_PASSES = 24  # before the first wrong output, each of which is tried
MOST_OTHERS = 6  # sequences whose states behind a prefix are tried
MOST_BORDERS = 8  # of each
WORDS = {KINDS: "states", (RECURRENCE,): "recurrence", (CONVOLUTION,): "window of the convolution"}


def state_mistakes(replay: StateReplay) -> Iterator[StateMistake]:
    """Yields mistakes, the most common first."""
    wrong, passes = int(replay.suspect.honest.samples[0]), replay.passes
    until_then = [pair for pair in enumerate(passes) if pair[1].last_cell <= wrong]
    nearest = until_then[: -MOST_PASSES - 1 : -1]
    yield from _taken_over(replay)
    yield from _left_over(replay)
    yield from _at_chunks(passes)
    yield from _of_neighbours(replay, nearest)
    yield from _once(replay, nearest)
    yield from _always()


def _taken_over(replay: StateReplay) -> Iterator[StateMistake]:
    """Yields mistakes of what a sequence has behind the tokens that it took over, if it took any."""
    table, passes, suspect = replay.table, replay.passes, replay.suspect
    num_taken = len(passes[0].token_ids)
    if not table.is_reused[passes[0].last_cell]:
        return
    where = f"behind the {num_taken} tokens it took over"
    yield StateMistake(f"{where} the states are empty", Change([0], cleared))
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
            change = Change([0], partial(with_states_of, other=replay.behind(tokens)))
            whose = "it had before" if number == suspect.seq else f"{fed.request.request_id!r} had"
            yield StateMistake(f"{where} it has the states that {whose} behind {end}", change)


def _left_over(replay: StateReplay) -> Iterator[StateMistake]:
    table, seq, start = replay.table, replay.suspect.seq, replay.passes[0].step
    ended = []
    for number, fed in enumerate(table.sequences):
        theirs = table.step[table.seq == number]
        if number == seq and int(theirs.min()) < start:
            ended.append((start, number, "it had itself before it was preempted"))
        elif number != seq and len(theirs) and int(theirs.max()) < start:
            ended.append((int(theirs.max()), number, f"{fed.request.request_id!r} left"))
    for _, number, whose in sorted(ended, reverse=True)[:MOST_TENANTS]:
        left = replay.kept(number, start)
        for kinds, words in WORDS.items():
            change = Change(start=with_states_of(None, replay.empty(), left, kinds))
            yield StateMistake(f"it starts from the {words} that {whose}", change)


def _at_chunks(passes: Sequence[Pass]) -> Iterator[StateMistake]:
    later = [n for n, each in enumerate(passes) if each.context_len and len(each.token_ids) > 1]
    borders = [number - 1 for number in later]  # the passes before
    if later:
        for kinds, words in WORDS.items():
            change = Change(borders, partial(cleared, kinds=kinds))
            yield StateMistake(f"each later chunk of a prompt starts without the {words}", change)
        late = Change(borders, partial(shifted, by=1))
        yield StateMistake("at a chunk border the convolution's window is one token late", late)
        for width in (2, 3, 4):
            change = Change(borders, partial(narrowed, width=width))
            text = f"at a chunk border the convolution sees fewer than {width} tokens"
            yield StateMistake(text, change)
        for longest in (3, 7, 15):
            short = [n for n in later if len(passes[n].token_ids) <= longest]
            text = f"chunks of at most {longest} tokens leave no state"
            yield StateMistake(text, Change(short, unchanged))
    fed = [number for number, each in enumerate(passes) if len(each.token_ids) > 1]
    yield StateMistake("passes over a prompt leave the recurrence transposed", Change(fed, transposed))
    for num_pads in (1, 2, 3):
        text = f"{num_pads} pads behind the prompt are in the convolution's window"
        yield StateMistake(text, Change([0], partial(shifted, by=-num_pads)))


def _of_neighbours(replay: StateReplay, nearest: Sequence[tuple[int, Pass]]) -> Iterator[StateMistake]:
    table = replay.table
    for number, each in nearest:
        for other in table.seq[table.step == each.step].unique().tolist() if number else ():
            theirs = replay.kept(other, each.step) if other != replay.suspect.seq else None
            if theirs is None:
                continue
            name = table.sequences[other].request.request_id
            for kinds, words in WORDS.items():
                change = Change([number - 1], partial(with_states_of, other=theirs, kinds=kinds))
                text = f"behind {each.context_len} tokens it has the {words} of {name!r}"
                yield StateMistake(text, change)


def _once(replay: StateReplay, nearest: Sequence[tuple[int, Pass]]) -> Iterator[StateMistake]:
    """Yields mistakes of a single pass, those nearest to the wrong output first."""
    for number, each in nearest:
        where = f"positions {each.context_len} to {each.end - 1}"
        for kinds, words in WORDS.items() if number else ():
            change = Change([number - 1], partial(cleared, kinds=kinds))
            yield StateMistake(f"behind {each.context_len} tokens the {words} is lost", change)
        for text, edit in (
            (f"the states do not keep what {where} change", unchanged),
            (f"what {where} add to the recurrence counts twice", doubled),
            (
                f"the token of position {each.end - 1} is fed to the states twice",
                partial(fed_again, replay=replay, last=each),
            ),
        ):
            yield StateMistake(text, Change([number], edit))


def _always() -> Iterator[StateMistake]:
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        change = Change(EVERY, partial(rounded, dtype=dtype))
        yield StateMistake(f"the recurrence is kept in {name}", change, is_rounding=True)
