"""transformers' caches of running sequences: one for each group that is fed together, a row for each.

What a layer keeps of a sequence (keys and values, a recurrent state, the last inputs of a convolution)
is in its cache, of whatever class; here it is only moved about. A group that stays together keeps its
cache. When its members change, their rows are copied into a new one: all tensors of the states have the
sequences along their first dimension, and everything else in it is the same for all members.
"""

import copy
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, cache_utils
from transformers.cache_utils import (
    CacheLayerMixin,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from batchproof_paged.rows import Rows
from batchproof_paged.sequence import Sequence

# A layer that keeps nothing has a class of its own since transformers 5.23.
DUMMIES = (cache_utils.DummyLayer,) if hasattr(cache_utils, "DummyLayer") else ()
LAYERS = (CacheLayerMixin, LinearAttentionCacheLayerMixin, *DUMMIES)


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences fed together, and their cache, a row for each."""

    sequences: list[Sequence]
    cache: Any  # of transformers, or whatever else a model gives back


class RowCaches:
    """Where the cache of each running sequence is. A lane holds at most one sequence's."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Group, int]] = {}  # lane -> its group and row

    def forget_ended(self) -> None:
        """Drops the caches of sequences that have left their lane."""
        for lane, (group, row) in list(self._groups.items()):
            if group.sequences[row].lane != lane:
                del self._groups[lane]

    def gathered(self, rows: Rows) -> Any:
        """Returns a cache whose rows are those of these sequences, in order, as they were kept."""
        parts: list[tuple[Group, list[int]]] = []
        for sequence in rows.sequences:
            group, row = self._groups[sequence.lane]
            assert group.sequences[row] is sequence, "the lane has had another tenant since"
            if parts and parts[-1][0] is group:
                parts[-1][1].append(row)
            else:
                parts.append((group, [row]))
        if len(parts) == 1 and rows.sequences == parts[0][0].sequences:
            return parts[0][0].cache
        return joined([(group.cache, places) for group, places in parts])

    def keep(self, rows: Rows, cache: Any) -> None:
        group = Group(rows.sequences, cache)
        for place, sequence in enumerate(rows.sequences):
            self._groups[sequence.lane] = group, place


def joined(parts: Seq[tuple[Any, list[int]]]) -> Any:
    """Returns a new cache that has the given rows of the given caches, in order; it shares no tensor of
    rows with them."""
    return _joined([cache for cache, _ in parts], [torch.tensor(rows) for _, rows in parts])


def _joined(values: list[Any], rows: list[Tensor]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        if first.dim() == 0:
            return first
        picked = [each[index.to(each.device)] for each, index in zip(values, rows, strict=True)]
        return picked[0] if len(picked) == 1 else torch.cat(picked)
    if isinstance(first, dict):
        return {key: _joined([each[key] for each in values], rows) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(each), rows) for each in zip(*values, strict=True))
    if isinstance(first, (Cache, *LAYERS)):
        result = copy.copy(first)
        vars(result).update(_joined([vars(each) for each in values], rows))
        return result
    return first


class OurKeys(CacheLayerMixin):  # type: ignore[misc]  # transformers hides its type
    """Stands for the keys and values of an attention layer, which our attention function stores."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0  # of the longest sequence of the group, before the pass
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Has nothing to make."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Hands the new keys and values on to the attention function."""
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.num_tokens

    def get_max_length(self) -> int:
        """Returns -1: there is no maximum."""
        return -1


class OurKeysAndState(LinearAttentionLayer, OurKeys):  # type: ignore[misc]
    """A layer that both attends and carries a state."""

    def __init__(self, number_of_states: int) -> None:
        OurKeys.__init__(self)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


def states_beside_our_keys(config: PreTrainedConfig) -> DynamicCache:
    """Returns transformers' empty cache for the model, with `OurKeys` in the place of its attention
    layers' keys and values."""
    cache = DynamicCache(config=config)
    for index, layer in enumerate(cache.layers):
        has_state = isinstance(layer, LinearAttentionCacheLayerMixin)
        if isinstance(layer, CacheLayerMixin):
            own = OurKeysAndState(layer.number_of_states) if has_state else OurKeys()
            cache.layers[index] = own
    return cache
