"""Mistakes with recurrent states: what can be done to them around a sequence's passes, and which of
that gives the engine's answer.
"""

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

from batchproof.diagnosis.counterfactual import CellTable, Suspect
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

    @property
    def is_later_chunk(self) -> bool:
        return self.context_len > 0 and len(self.token_ids) > 1


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to the states of a sequence around these passes; by default nothing.

    `numbers` count the passes since the sequence was last admitted. `before` takes the cache that the
    pass would start from, None if nothing has been fed, and returns the one that it starts from.
    `after` takes the cache that the pass started from and the one behind it, and returns what is kept.
    """

    numbers: Collection[int] = ()
    before: Callable[[Any], Any] = lambda cache: cache
    after: Callable[[Any, Any], Any] = lambda _old, cache: cache


def carries_states(subject: ModelUnderTest) -> bool:
    """Returns whether transformers keeps a recurrent or a convolution's state for some layer."""
    try:
        layers = DynamicCache(config=subject.model.config).layers
    except (AttributeError, KeyError):  # a configuration without layers, or with unknown ones
        return False
    return any(isinstance(each, LinearAttentionCacheLayerMixin) for each in layers)


def passes_of(table: CellTable, seq: int) -> list[Pass]:
    own = (table.seq == seq).nonzero()[:, 0]
    found: list[Pass] = []
    for step in table.step[own].unique().tolist():
        cells = own[table.step[own] == step]
        first, last = int(cells[0]), int(cells[-1])
        tokens = tuple(table.token[cells].tolist())
        found.append(Pass(step, int(table.epoch[first]), int(table.index[first]), tokens, last))
    return found


def _of_last_epoch(passes: Sequence[Pass]) -> list[Pass]:
    return [each for each in passes if each.epoch == passes[-1].epoch]


class StateReplay:
    def __init__(self, subject: ModelUnderTest, table: CellTable) -> None:
        self._model: PreTrainedModel = subject.exact
        taken = inspect.signature(self._model.forward).parameters
        self._cache_name = next(name for name in CACHE_PARAMETERS if name in taken)
        self._has_positions = "position_ids" in taken
        self._table = table
        self.kept = cache(self._kept)
        self.behind = cache(self._behind)

    def passes(self, seq: int) -> list[Pass]:
        """Returns the passes since the sequence was last admitted."""
        return _of_last_epoch(passes_of(self._table, seq))

    @torch.inference_mode()
    def _kept(self, seq: int, step: int) -> Any:
        """Returns the cache of an honestly served sequence behind its passes before a step; None if
        there are none."""
        earlier = [each for each in passes_of(self._table, seq) if each.step < step]
        kept: Any = None
        for each in _of_last_epoch(earlier):
            kept, _ = self.fed(each, kept)
        return kept

    @torch.inference_mode()
    def logits(self, passes: Sequence[Pass], change: Change) -> dict[int, Tensor]:
        """Returns float64 logits (vocab,) by the last cell of each pass, given a change."""
        found: dict[int, Tensor] = {}
        kept: Any = None
        for number, each in enumerate(passes):
            is_changed = number in change.numbers
            old = change.before(kept) if is_changed else kept
            after, found[each.last_cell] = self.fed(each, old)
            kept = change.after(old, after) if is_changed else after
        return found

    @torch.inference_mode()
    def fed(self, each: Pass, kept: Any) -> tuple[Any, Tensor]:
        """Runs a pass upon a copy of a cache. Returns that copy and the logits (vocab,) of its last
        token."""
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


def with_states_of(cache: Any, other: Any, kinds: Sequence[str] = KINDS) -> Any:
    """Returns the cache with states of these kinds of another one, and with none of the other kinds if
    it had none itself."""
    layers, others = layers_with_states(cache), set(KINDS) - set(kinds)
    is_empty = not any(any(each.has_previous_state.values()) for each in layers)
    copied = _ABOUT_STATES if is_empty else _ABOUT_STATES - others
    for mine, theirs in zip(layers, layers_with_states(other), strict=True):
        for name in vars(theirs).keys() & copied:
            setattr(mine, name, copy.deepcopy(getattr(theirs, name)))
    return cleared(cache, others) if is_empty else cache


_ABOUT_STATES = {
    *KINDS,
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
    "device",
    "dtype",
}


@dataclass(frozen=True, slots=True)
class StateMistake:
    """A mistake, in words an engineer can act on, and what it does to the states."""

    text: str
    change: Change
    is_rounding: bool = False
    cause: Cause = Cause.STATE


def unchanged(old: Any, cache: Any) -> Any:
    """Returns the cache with the states that the pass started from."""
    return cleared(cache, KINDS) if old is None else with_states_of(cache, old)


def doubled(old: Any, cache: Any) -> Any:
    for place, new in enumerate(states(cache, RECURRENCE)):
        new.add_(new if old is None else new - [*states(old, RECURRENCE)][place])
    return cache


def fed_again(_old: Any, cache: Any, replay: StateReplay, last: Pass) -> Any:
    again = replace(last, context_len=last.end - 1, token_ids=last.token_ids[-1:])
    return with_states_of(cache, replay.fed(again, cache)[0])


def with_zeros(_old: Any, cache: Any, num_pads: int) -> Any:
    """Shifts zeros into the convolution's window from behind."""
    for each in states(cache, CONVOLUTION):
        each.copy_(each.roll(-num_pads, dims=-1))
        each[..., -num_pads:] = 0
    return cache


def cleared(cache: Any, kinds: Collection[str]) -> Any:
    for each in states(cache, *kinds):
        each.zero_()
    return cache


def one_late(cache: Any) -> Any:
    for each in states(cache, CONVOLUTION):
        each.copy_(each.roll(1, dims=-1))
    return cache


def transposed(_old: Any, cache: Any) -> Any:
    for each in states(cache, RECURRENCE):
        if each.shape[-1] == each.shape[-2]:
            each.copy_(each.mT.clone())
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


EVERY = range(1 << 20)  # passes
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
    change = Change([1], partial(cleared, kinds=KINDS))
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
            change = Change([1], partial(with_states_of, other=theirs))
            whose = "it had before" if number == suspect.seq else f"{fed.request.request_id!r} had"
            yield StateMistake(f"{where} it has the states that {whose} behind {end}", change)


def _left_over(replay: StateReplay, suspect: Suspect, passes: Sequence[Pass]) -> Iterator[StateMistake]:
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
            change = Change([0], partial(_started, replay=replay, left=left, kinds=kinds))
            yield StateMistake(f"it starts from the {words} that {whose}", change)


def _started(_: Any, replay: StateReplay, left: Any, kinds: Sequence[str]) -> Any:
    return with_states_of(replay.empty(), left, kinds)


def _at_chunks(passes: Sequence[Pass]) -> Iterator[StateMistake]:
    numbers = [number for number, each in enumerate(passes) if each.is_later_chunk]
    if numbers:
        for kinds, words in WORDS.items():
            change = Change(numbers, partial(cleared, kinds=kinds))
            yield StateMistake(f"each later chunk of a prompt starts without the {words}", change)
        late = Change(numbers, one_late)
        yield StateMistake("at a chunk border the convolution's window is one token late", late)
        for width in (2, 3, 4):
            change = Change(numbers, partial(narrowed, width=width))
            text = f"at a chunk border the convolution sees fewer than {width} tokens"
            yield StateMistake(text, change)
        for longest in (3, 7, 15):
            short = [n for n in numbers if len(passes[n].token_ids) <= longest]
            text = f"chunks of at most {longest} tokens leave no state"
            yield StateMistake(text, Change(short, after=unchanged))
    fed = [number for number, each in enumerate(passes) if len(each.token_ids) > 1]
    yield StateMistake(
        "passes over a prompt leave the recurrence transposed", Change(fed, after=transposed)
    )
    for num_pads in (1, 2, 3):
        text = f"{num_pads} pads behind the prompt are in the convolution's window"
        yield StateMistake(text, Change([0], after=partial(with_zeros, num_pads=num_pads)))


def _of_neighbours(
    replay: StateReplay, suspect: Suspect, passes: Sequence[Pass]
) -> Iterator[StateMistake]:
    table = suspect.table
    for number, each in reversed([*enumerate(passes)][-MOST_PASSES:]):
        for other in table.seq[table.step == each.step].unique().tolist():
            theirs = replay.kept(other, each.step) if other != suspect.seq else None
            if theirs is None or number == 0:
                continue
            name = table.sequences[other].request.request_id
            for kinds, words in WORDS.items():
                change = Change([number], partial(with_states_of, other=theirs, kinds=kinds))
                text = f"behind {each.context_len} tokens it has the {words} of {name!r}"
                yield StateMistake(text, change)


def _once(replay: StateReplay, passes: Sequence[Pass]) -> Iterator[StateMistake]:
    """Yields mistakes of a single pass, those nearest to the wrong output first."""
    for number, each in reversed([*enumerate(passes)][-MOST_PASSES:]):
        where = f"positions {each.context_len} to {each.end - 1}"
        if number:
            for kinds, words in WORDS.items():
                change = Change([number], partial(cleared, kinds=kinds))
                yield StateMistake(f"behind {each.context_len} tokens the {words} is lost", change)
        yield StateMistake(
            f"the states do not keep what {where} change", Change([number], after=unchanged)
        )
        yield StateMistake(
            f"what {where} add to the recurrence counts twice", Change([number], after=doubled)
        )
        again = Change([number], after=partial(fed_again, replay=replay, last=each))
        yield StateMistake(f"the token of position {each.end - 1} is fed to the states twice", again)


def _always() -> Iterator[StateMistake]:
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        change = Change(EVERY, partial(rounded, dtype=dtype))
        yield StateMistake(f"the recurrence is kept in {name}", change, is_rounding=True)
