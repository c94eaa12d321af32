"""How a model can be fed: the fastest way that serves it rightly, found when an engine is built.

1. `packed`: all tokens of a step in one row, with our attention. For models whose layers only attend.
2. `stacked`: decodes in one batch and prompts by themselves, with our attention. For models that carry
   states besides (state-space layers, linear attention, convolutions).
3. `separate`: each sequence by itself, with the model's own attention and cache. The slow way, for all
   others that answer as they do alone.

Where compiling its layers or capturing its steps fails, a model is packed without, before a slower way
is tried. What a configuration and a recorded pass do not show, a trial batch does. A way is passed over
if it is known to be wrong, if its answers are, or if the model itself fails; not if our own code does.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from traceback import walk_tb
from typing import NamedTuple
from weakref import WeakKeyDictionary

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from batchproof.api import Engine
from batchproof.errors import BatchproofError, ConfigError, UnsupportedModelError
from batchproof_engines.model_support import (
    cache_parameter,
    refuse_batch_dependent,
    refuse_unbatchable,
    state_of,
    unsupported,
)
from batchproof_engines.trial_batch import probe_logits
from batchproof_paged.compiled import uniform_layers
from batchproof_paged.declared import refuse_undeclared
from batchproof_paged.options import FEEDS, PACKED, SEPARATE, STACKED, PagedOptions
from batchproof_paged.row_caches import LAYERS

NAME = "paged"
NO_STATE = "its layers carry no state"


Build = Callable[..., Engine]  # (model, config, options), which are resolved; without a trial batch


class Way(NamedTuple):
    """A way of feeding, and what it gives up against the one before, if that is worth a note."""

    asked: PagedOptions
    given_up: str = ""


class Found(NamedTuple):
    """Resolved options with which a model is served rightly, and what was given up for that."""

    options: PagedOptions
    notes: tuple[str, ...] = ()


# By model: what was found for the options that were asked for, or why there is nothing.
_FOUND: WeakKeyDictionary[PreTrainedModel, dict[object, Found | str]] = WeakKeyDictionary()


def options_for(model: PreTrainedModel, asked: PagedOptions, build: Build) -> Found:
    """Returns the options with which `build` makes an engine that serves the model rightly.

    Raises `UnsupportedModelError`, with the reason against each way, if there are none, and
    `ConfigError` for options that contradict each other, the device, or the only ways left.
    """
    attention = model.config._attn_implementation
    known_by = repr(model.config.to_dict()), attention, model.device, model.dtype, state_of(model)
    facts = *known_by, asked
    known = _FOUND.setdefault(model, {})
    if facts not in known:
        known[facts] = _first_right(model, asked, build)
    found = known[facts]
    if isinstance(found, str):
        raise unsupported(NAME, model, found)
    return found


def _first_right(model: PreTrainedModel, asked: PagedOptions, build: Build) -> Found | str:
    """Returns the first way that is right, or why none is. Raises `ConfigError`."""
    reasons: dict[str, str] = {}
    notes: list[str] = []
    tried: list[PagedOptions] = []
    for way in _ways(asked):
        feed = way.asked.feed
        try:
            options = way.asked.resolved(model.device, model.dtype)
            if options in tried:  # what it gives up was not there
                continue
            tried.append(options)
            if way.given_up:
                notes.append(f"{way.given_up}: {reasons[feed]}")
            _try(model, options, build)
        except UnsupportedModelError as error:
            reasons[feed] = str(error).partition(": ")[2]
            if _is_a_defect(error.__cause__):
                break
        except ConfigError as error:
            if not reasons:
                raise
            reasons.setdefault(feed, str(error))
        else:
            return Found(options, tuple(notes) if feed == PACKED else ())
    reasons = {feed: why for feed, why in reasons.items() if why != NO_STATE} or reasons
    if len({*reasons.values()}) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{feed}: {why}" for feed, why in reasons.items())


def _try(model: PreTrainedModel, options: PagedOptions, build: Build) -> None:
    """Raises `UnsupportedModelError` if the model is not served rightly with these options."""
    REFUSALS[options.feed](model)
    if options.compile and not uniform_layers(model):
        raise unsupported(NAME, model, "its layers are not all of one class")
    unprepared = replace(options, prepare=False)
    probe_logits(NAME, model, partial(build, options=unprepared), options)


def _is_a_defect(error: BaseException | None) -> bool:
    """Returns whether a trial batch failed in our own code, where nothing is wrong with the model: a
    slower way would hide that."""
    if error is None or isinstance(error, BatchproofError):
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith(f"{__package__}.")


def _ways(asked: PagedOptions) -> Iterator[Way]:
    for feed in FEEDS if asked.feed == "auto" else (asked.feed,):
        if feed == PACKED:
            yield from _packed_ways(asked)
            continue
        for one_by_one in (False, True) if asked.one_by_one is None else (asked.one_by_one,):
            yield Way(replace(asked, feed=feed, one_by_one=one_by_one))


def _packed_ways(asked: PagedOptions) -> Iterator[Way]:
    if asked.one_by_one and asked.feed != PACKED:  # which would contradict it
        return
    packed = replace(asked, feed=PACKED, one_by_one=bool(asked.one_by_one))
    yield Way(packed)
    if asked.native is None:
        packed = replace(packed, native=False)
        yield Way(packed, "it is not run by our own operations")
    if asked.compile is None:
        packed = replace(packed, compile=False)
        yield Way(packed, "its layers are not compiled")
    if asked.graphs is None:
        yield Way(replace(packed, graphs=False), "its steps are not captured")


def _refuse_unpacked(model: PreTrainedModel) -> None:
    refuse_unbatchable(NAME, model)
    refuse_undeclared(NAME, model)


def _refuse_stateless(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` unless the model's layers attend, carry states, or do neither."""
    refuse_batch_dependent(NAME, model)
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError) as error:
        raise unsupported(NAME, model, f"transformers has no cache for it: {error!r}") from error
    if cache_parameter(model) not in ("past_key_values", "cache_params"):
        raise unsupported(NAME, model, "it takes no cache of transformers")
    if not any(isinstance(each, LinearAttentionCacheLayerMixin) for each in layers):
        raise unsupported(NAME, model, NO_STATE)
    if not all(isinstance(each, LAYERS) for each in layers):
        raise unsupported(NAME, model, "it has layers that transformers' cache does not know")
    refuse_undeclared(NAME, model)


def _refuse_cacheless(model: PreTrainedModel) -> None:
    refuse_batch_dependent(NAME, model)
    if cache_parameter(model) is None:
        raise unsupported(NAME, model, "it has no cache")


REFUSALS = {PACKED: _refuse_unpacked, STACKED: _refuse_stateless, SEPARATE: _refuse_cacheless}
