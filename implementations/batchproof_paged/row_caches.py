"""transformers' caches of running sequences: one for each group that is fed together, a row for each.

What a layer keeps of a sequence (keys and values, a recurrent state, the last inputs of a convolution)
is in its cache, of whatever class; here it is only moved about. A group that stays together keeps its
cache. When its members change, their rows are copied into a new one: all tensors of the states have the
sequences along their first dimension, and everything else in it is the same for all members.
"""

import copy
from collections.abc import Iterator
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

from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The cache of a sequence behind some of its tokens, with one row."""

    token_ids: tuple[int, ...]
    cache: Any


class Checkpoints:
    """Prefix caching for models with states: a state cannot be cut, so it is kept where it may be
    needed. None is kept if `is_on` is False.

    Keys and values of a prefix are in its blocks, position by position. A recurrent state is that of
    one position alone, so a request takes over only as much of a known prefix as ends at a checkpoint.
    There are two in a prompt: behind its last full block, and behind the last block of the prefix that
    was known when it came, where it departs from other prompts. So of several prompts that begin alike
    the second leaves a checkpoint where the common part ends, and the third starts from there. A
    checkpoint belongs to the block it is behind, and lives until that block is written again.

    Both places as in SGLang's radix cache for such models (sgl-project/sglang#31181), and in
    vllm-project/vllm#45238.
    """

    def __init__(self, block_size: int, is_on: bool) -> None:
        self._block_size = block_size
        self._is_on = is_on
        self._by_block: dict[int, Checkpoint] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def num_resumable(self, sequence: Sequence, blocks: tuple[int, ...]) -> int:
        """Returns how many of the leading cached blocks the sequence can reuse."""
        for num in range(len(blocks), 0, -1):
            found = self._by_block.get(blocks[num - 1])
            tokens = tuple(sequence.token_ids[: num * self._block_size])
            if found is not None and found.token_ids == tokens:
                return num
        return 0

    def places(self, row: Scheduled) -> Iterator[int]:
        """Yields how many tokens of the row's sequence are before each checkpoint within the row."""
        sequence, context_len, query_len, is_sampled = row
        if not self._is_on or (is_sampled and query_len == 1):
            return
        size = self._block_size
        ends = {len(sequence.known_blocks) * size, (sequence.num_tokens - 1) // size * size}
        yield from (end for end in sorted(ends) if context_len < end <= context_len + query_len)

    def forget_overwritten(self, rows: Rows) -> None:
        if not self._by_block:
            return
        size = self._block_size
        for sequence, context_len, query_len, _ in zip(*rows.columns, strict=True):
            first, last = -(-context_len // size), -(-(context_len + query_len) // size)
            for block in sequence.block_table[first:last]:
                self._by_block.pop(block, None)

    def keep(self, sequence: Sequence, num_tokens: int, cache: Any, row: int) -> None:
        """Copies one row of the cache: the state after the sequence's first tokens."""
        column, known = num_tokens // self._block_size - 1, sequence.known_blocks
        # Of equal blocks those that others find are the known ones.
        block = known[column] if column < len(known) else sequence.block_table[column]
        tokens = tuple(sequence.token_ids[:num_tokens])
        self._by_block[block] = Checkpoint(tokens, joined([(cache, [row])]))

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Returns a copy of the cache of the sequence's first tokens, which are taken over."""
        block = sequence.block_table[num_tokens // self._block_size - 1]
        return joined([(self._by_block[block].cache, [0])])


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

    def hold(self, sequence: Sequence) -> bool:
        group, row = self._groups.get(sequence.lane, (None, 0))
        return group is not None and group.sequences[row] is sequence

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
        """Returns the number of keys and the position of the first."""
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
