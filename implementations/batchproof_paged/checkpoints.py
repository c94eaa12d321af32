"""Prefix caching for models with states: a state cannot be cut, so it is kept where it may be needed.

Keys and values of a prefix are in its blocks, position by position. A recurrent state is that of one
position alone, so a request takes over only as much of a known prefix as ends at a *checkpoint*. There
are two in a prompt: behind its last full block, and behind the last block of the prefix that was known
when it came, where it departs from other prompts. So of several prompts that begin alike the second
leaves a checkpoint where the common part ends, and the third starts from there.

A checkpoint belongs to the block it is behind, and lives until that block is written again: there are
no more of them than blocks.

Both places as in SGLang's radix cache for such models (sgl-project/sglang#31181), and in
vllm-project/vllm#45238.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from batchproof_paged.row_caches import joined
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The cache of a sequence behind some of its tokens, with one row."""

    token_ids: tuple[int, ...]
    cache: Any


class Checkpoints:
    """Checkpoints by the block they are behind; none if `is_on` is False."""

    def __init__(self, block_size: int, is_on: bool) -> None:
        self._block_size = block_size
        self._is_on = is_on
        self._by_block: dict[int, Checkpoint] = {}

    def __len__(self) -> int:
        """Returns how many are kept."""
        return len(self._by_block)

    def num_resumable(self, sequence: Sequence, blocks: tuple[int, ...]) -> int:
        """Returns behind how many of a known prefix's blocks the sequence can start."""
        for num in range(len(blocks), 0, -1):
            found = self._by_block.get(blocks[num - 1])
            if found is not None and self._fits(found, sequence, num * self._block_size):
                return num
        return 0

    def _fits(self, found: Checkpoint, sequence: Sequence, num_tokens: int) -> bool:
        return found.token_ids == tuple(sequence.token_ids[:num_tokens])

    def places(self, row: Scheduled) -> Iterator[int]:
        """Yields how many tokens of the row's sequence are before each checkpoint within the row."""
        sequence, context_len, query_len, is_sampled = row
        if not self._is_on or (is_sampled and query_len == 1):
            return
        size = self._block_size
        ends = {len(sequence.known_blocks) * size, (sequence.num_tokens - 1) // size * size}
        yield from (end for end in sorted(ends) if context_len < end <= context_len + query_len)

    def forget_overwritten(self, rows: Rows) -> None:
        """Drops the checkpoints behind blocks that these rows begin to write."""
        if not self._by_block:
            return
        size = self._block_size
        for sequence, context_len, query_len, _ in zip(*rows.columns, strict=True):
            first, last = -(-context_len // size), -(-(context_len + query_len) // size)
            for block in sequence.block_table[first:last]:
                self._by_block.pop(block, None)

    def keep(self, sequence: Sequence, num_tokens: int, cache: Any, row: int) -> None:
        """Keeps a copy of one row of a cache, which is that of the sequence's first tokens."""
        column, known = num_tokens // self._block_size - 1, sequence.known_blocks
        # Of equal blocks those that others find are the known ones.
        block = known[column] if column < len(known) else sequence.block_table[column]
        tokens = tuple(sequence.token_ids[:num_tokens])
        self._by_block[block] = Checkpoint(tokens, joined([(cache, [row])]))

    def restored(self, sequence: Sequence, num_tokens: int) -> Any:
        """Returns a copy of the cache of the sequence's first tokens, which are taken over."""
        return joined([(self._behind(sequence, num_tokens).cache, [0])])

    def _behind(self, sequence: Sequence, num_tokens: int) -> Checkpoint:
        return self._by_block[sequence.block_table[num_tokens // self._block_size - 1]]
