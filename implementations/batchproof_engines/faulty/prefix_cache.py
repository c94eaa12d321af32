"""Cached prefixes that hold other tokens than asked for, are incomplete, or belong to someone else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.block_manager import ROOT, BlockManager
from batchproof_paged.runner import Flight, ModelRunner
from batchproof_paged.sequence import Sequence


@planted(Promise.P1, Cause.STALE, "raullenchai/Rapid-MLX#2960")
class BlocksKnownByTheirOwnTokens(BlockManager):
    """A block is looked up by its own tokens alone, whatever came before them."""

    @property
    def _last_content_id(self) -> int:
        return ROOT

    @_last_content_id.setter
    def _last_content_id(self, content_id: int) -> None:
        """Ignores the id: all content has the same one."""


@planted(Promise.P8, Cause.STALE, "GeeeekExplorer/nano-vllm#163")
class EvictedPrefixIsStillFound(BlockManager):
    """A block that is reassigned can still be found under what it held before."""

    def _take(self, column: int, lane: int) -> int:
        published, keys = dict(self._published), dict(self._keys)
        block = super()._take(column, lane)
        self._published, self._keys = published, keys
        return block


@planted(Promise.P11, Cause.ACCOUNTING, "Avarok-Cybersecurity/atlas#373")
class SharedBlocksGoWithTheFirst(BlockManager):
    """Blocks that several requests share are freed as soon as the first of them leaves."""

    def release(self, sequence: Sequence) -> list[int]:
        """Releases the sequence's blocks as if it were their only user."""
        self._num_users.update(dict.fromkeys(sequence.block_table, 1))
        return super().release(sequence)


@planted(Promise.P7, Cause.FEED, "waybarrios/vllm-mlx#311")
class OneTokenMoreThanIsCached(BlockManager):
    """The token after a reused prefix is neither cached nor fed."""

    def adopt(self, sequence: Sequence, hits: tuple[int, ...]) -> None:
        """Adopts the hits, and counts one token more than they hold as computed."""
        super().adopt(sequence, hits)
        if hits and sequence.num_uncomputed_tokens > 1:
            sequence.num_computed_tokens += 1


@planted(Promise.P7, Cause.CRASH, "GeeeekExplorer/nano-vllm#117")
class NothingLeftToFeed(BlockManager):
    """A prompt that is cached to its very end leaves no token to feed, so the step is empty."""

    def match(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns the hits for all tokens of the sequence, the last one included."""
        sequence.token_ids.append(0)
        try:
            return super().match(sequence)
        finally:
            sequence.token_ids.pop()


@planted(Promise.P7, Cause.POSITION, "vllm-project/vllm-metal#144")
class PositionsForgetThePrefix(ModelRunner):
    """After a reused prefix, positions start at 0 again."""

    def launch(self, batch: RaggedBatch) -> Flight:
        """Launches the batch with positions counted from the end of each cached prefix."""
        cached = [each.sequence.num_cached_tokens for each in batch.scheduled]
        behind = batch.position_ids - np.repeat(cached, batch.query_lens)
        return super().launch(replace(batch, position_ids=behind))


@planted(Promise.P5, Cause.ACCOUNTING, "sgl-project/mini-sglang#142")
class TwinsBlocksGoTooEarly(BlockManager):
    """Of two requests that computed the same prefix, the second gives its blocks back and goes on using
    them."""

    def publish(self, sequence: Sequence) -> None:
        """Publishes the blocks, and frees those whose content another sequence had published before."""
        num_before = sequence.num_published_blocks
        super().publish(sequence)
        for block in sequence.block_table[num_before : sequence.num_published_blocks]:
            if block not in self._keys:
                del self._num_users[block]
                self._blank.add([block])

    def release(self, sequence: Sequence) -> list[int]:
        """Releases the blocks, some of which may have been freed already."""
        for block in sequence.block_table:
            self._num_users.setdefault(block, 1)
        return super().release(sequence)


@planted(Promise.P5, Cause.LEAK, "Avarok-Cybersecurity/atlas#1193")
class PartOfABlockIsShared(BlockManager):
    """A block is shared as far as its first tokens agree, and both requests go on writing to it."""

    def match(self, sequence: Sequence) -> tuple[int, ...]:
        """Returns the whole hits and the block that agrees with part of what follows them."""
        hits = super().match(sequence)
        block, num_equal = self._partial(sequence, hits)
        return (*hits, block) if num_equal else hits

    def adopt(self, sequence: Sequence, hits: tuple[int, ...]) -> None:
        """Adopts the hits, the last of which may be valid only in part."""
        whole = super().match(sequence)
        _, num_equal = self._partial(sequence, whole)
        super().adopt(sequence, hits)
        if len(hits) > len(whole):
            num_cached = len(whole) * self.block_size + num_equal
            sequence.num_computed_tokens = sequence.num_cached_tokens = num_cached
            sequence.num_published_blocks = len(whole)
            sequence.content_id = self._content_id(whole)

    def _content_id(self, hits: tuple[int, ...]) -> int:
        return self._published[self._keys[hits[-1]]][1] if hits else ROOT

    def _partial(self, sequence: Sequence, hits: tuple[int, ...]) -> tuple[int, int]:
        """Returns the published block that agrees longest with what follows the hits, and the number of
        tokens.

        At least one token is left to feed.
        """
        start = len(hits) * self.block_size
        rest = sequence.token_ids[start : min(start + self.block_size, sequence.num_tokens) - 1]
        best = (-1, 0)
        for (content_id, tokens), (block, _) in self._published.items():
            if content_id == self._content_id(hits):
                differ = [a != b for a, b in zip(tokens, rest, strict=False)]
                num_equal = differ.index(True) if True in differ else len(differ)
                best = max(best, (block, num_equal), key=lambda each: each[1])
        return best


@planted(Promise.P13, Cause.STALE, "sgl-project/sglang#38319")
class HalfABlockIsPublished(BlockManager):
    """A block counts as computed once a chunk has begun it, even if the request ends there."""

    def publish(self, sequence: Sequence) -> None:
        """Publishes all blocks that the sequence owns as if they were computed."""
        num_computed = sequence.num_computed_tokens
        num_owned = len(sequence.block_table) * self.block_size
        sequence.num_computed_tokens = min(sequence.num_tokens, num_owned)
        super().publish(sequence)
        sequence.num_computed_tokens = num_computed


@planted(Promise.P10, Cause.LIVENESS, "jjang-ai/vmlx#68")
class CachedBlocksAreNeverGivenUp(BlockManager):
    """Blocks of the prefix cache count as taken: once they fill the pool, no request is admitted."""

    def can_hold(self, sequence: Sequence, num_tokens: int, hits: tuple[int, ...] = ()) -> bool:
        """Returns whether the blank blocks alone suffice."""
        needed = self.num_blocks_for(num_tokens) - len(sequence.block_table) - len(hits)
        return self._limit is None or needed <= len(self._blank)


@planted(Promise.P1, Cause.CRASH, "NVIDIA/Megatron-LM#5822")
class HitsAreCountedAsRoom(BlockManager):
    """Cached blocks that a newcomer takes over also count as room for its other tokens."""

    def can_hold(self, sequence: Sequence, num_tokens: int, hits: tuple[int, ...] = ()) -> bool:
        """Returns whether there is room for the tokens that the hits do not hold."""
        return super().can_hold(sequence, num_tokens - len(hits) * self.block_size)
