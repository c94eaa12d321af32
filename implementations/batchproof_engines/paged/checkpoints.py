"""Prefix caching for models with states: a state cannot be cut, so it is kept where it may be needed.

Keys and values of a prefix are in its blocks, position by position. A recurrent state is that of one
position alone, so a request takes over only as much of a known prefix as ends at a *checkpoint*: the
states behind the last full block of a prompt, and behind the block where a prompt departs from a prefix
whose keys were known already. So of prompts that share their beginning the second leaves a checkpoint
at its end, and the third starts from there.

Both places as in SGLang's radix cache for such models (sgl-project/sglang#31181), and in
vllm-project/vllm#45238.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from batchproof_engines.paged.row_caches import joined
from batchproof_engines.paged.rows import Scheduled
from batchproof_engines.paged.sequence import Sequence


class Checkpoints:
    """States of single sequences by the tokens before them, `capacity` at most: those used least
    recently are forgotten."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self._capacity = capacity
        self._block_size = block_size
        self._caches: OrderedDict[tuple[int, ...], Any] = OrderedDict()  # each with one row

    def __len__(self) -> int:
        """Returns how many are kept."""
        return len(self._caches)

    def longest(self, sequence: Sequence, num_blocks: int) -> int:
        """Returns the number of blocks, at most `num_blocks`, behind which the sequence can start."""
        limit, tokens = num_blocks * self._block_size, sequence.token_ids
        lengths = sorted({length for length in map(len, self._caches) if length <= limit}, reverse=True)
        found = (length for length in lengths if tuple(tokens[:length]) in self._caches)
        return next(found, 0) // self._block_size

    def places(self, row: Scheduled) -> Iterator[int]:
        """Yields how many tokens of the row's sequence are before each checkpoint within the row."""
        sequence, context_len, query_len, is_sampled = row
        if not self._capacity or (is_sampled and query_len == 1):
            return
        size = self._block_size
        ends = {sequence.num_known_tokens, (sequence.num_tokens - 1) // size * size}
        yield from (end for end in sorted(ends) if context_len < end <= context_len + query_len)

    def keep(self, sequence: Sequence, num_tokens: int, cache: Any, row: int) -> None:
        """Keeps a copy of one row of a cache, which is that of the sequence's first tokens."""
        tokens = tuple(sequence.token_ids[:num_tokens])
        self._caches[tokens] = joined([(cache, [row])])
        self._caches.move_to_end(tokens)
        if len(self._caches) > self._capacity:
            self._caches.popitem(last=False)

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Returns a copy of the cache of the sequence's first tokens."""
        tokens = tuple(sequence.token_ids[:num_tokens])
        self._caches.move_to_end(tokens)
        return joined([(self._caches[tokens], [0])])
