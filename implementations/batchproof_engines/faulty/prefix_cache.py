"""Cached prefixes that hold other tokens than asked for, are incomplete, or are taken away."""

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager, Prefix


@planted(Promise.P1, Cause.STALE, "raullenchai/Rapid-MLX#2960")
class BlocksKnownByTheirOwnTokens(BlockManager):
    """A block is looked up by its own tokens alone, whatever came before them."""

    def prefix(self, sequence: Sequence, column: int) -> Prefix:
        prefix = super().prefix(sequence, column)
        return prefix[:1] + prefix[1 + column * self.block_size :]  # the adapter stays


@planted(Promise.P5, Cause.STALE, "kekzl/imp#1301")
class BlocksForgetWhatIsFarBefore(BlockManager):
    """A block is looked up by its own tokens and those of the 31 blocks before it."""

    def prefix(self, sequence: Sequence, column: int) -> Prefix:
        prefix = super().prefix(sequence, column)
        return prefix[:1] + prefix[1 + max(0, column - 31) * self.block_size :]  # the adapter stays


@planted(Promise.P8, Cause.STALE, "GeeeekExplorer/nano-vllm#163")
class EvictedPrefixIsStillFound(BlockManager):
    """A block that is reassigned can still be found under what it held before."""

    def evict(self, block: int) -> None:
        pass


@planted(Promise.P11, Cause.ACCOUNTING, "Avarok-Cybersecurity/atlas#373")
class SharedBlocksGoWithTheFirst(BlockManager):
    """Blocks that several requests share are freed as soon as the first of them leaves."""

    def release(self, sequence: Sequence) -> None:
        self.num_users.update(dict.fromkeys(self.tables[sequence.request_id].blocks, 1))
        super().release(sequence)


@planted(Promise.P7, Cause.FEED, "waybarrios/vllm-mlx#311")
class OneTokenMoreThanIsCached(BlockManager):
    """The token after a reused prefix is neither cached nor fed."""

    def adopt(self, sequence: Sequence, hits: list[int]) -> None:
        super().adopt(sequence, hits)
        if hits and sequence.num_uncomputed_tokens > 1:
            sequence.num_computed_tokens += 1


@planted(Promise.P7, Cause.CRASH, "GeeeekExplorer/nano-vllm#117")
class NothingLeftToFeed(BlockManager):
    """A prompt that is cached to its very end leaves no token to feed, so the step is empty."""

    def match(self, sequence: Sequence) -> list[int]:
        sequence.token_ids.append(0)
        try:
            return super().match(sequence)
        finally:
            sequence.token_ids.pop()


@planted(Promise.P5, Cause.LEAK, "Avarok-Cybersecurity/atlas#1193")
class PartOfABlockIsShared(BlockManager):
    """A block is shared as far as its first tokens agree, and both requests go on writing to it."""

    def match(self, sequence: Sequence) -> list[int]:
        hits = super().match(sequence)
        block, num_equal = self._partial(sequence, len(hits))
        return [*hits, block] if num_equal else hits

    def adopt(self, sequence: Sequence, hits: list[int]) -> None:
        super().adopt(sequence, hits)
        num_whole = len(super().match(sequence))
        if len(hits) > num_whole:
            _, num_equal = self._partial(sequence, num_whole)
            sequence.num_computed_tokens = num_whole * self.block_size + num_equal

    def _partial(self, sequence: Sequence, num_whole: int) -> tuple[int, int]:
        """Returns the published block that agrees longest with what follows whole blocks, and the
        number of tokens; at least one is left to feed."""
        start, best = num_whole * self.block_size, (-1, 0)
        rest = sequence.token_ids[start : start + self.block_size][:-1]
        known = (sequence.root, *sequence.token_ids[:start])
        for prefix, block in self.published.items():
            before, own = prefix[: len(known)], prefix[len(known) :]
            if before == known and len(own) == self.block_size:
                differ = [a != b for a, b in zip(own, rest, strict=False)]
                num_equal = [*differ, True].index(True)
                best = max(best, (block, num_equal), key=lambda each: each[1])
        return best


@planted(Promise.P13, Cause.STALE, "sgl-project/sglang#38319")
class HalfABlockIsPublished(BlockManager):
    """A block counts as computed once a chunk has begun it, even if the request ends there."""

    def publish(self, sequence: Sequence) -> None:
        num_computed = sequence.num_computed_tokens
        num_owned = len(self.tables[sequence.request_id].blocks) * self.block_size
        sequence.num_computed_tokens = min(len(sequence.token_ids), num_owned)
        super().publish(sequence)
        sequence.num_computed_tokens = num_computed


@planted(Promise.P10, Cause.LIVENESS, "jjang-ai/vmlx#68")
class CachedBlocksAreNeverGivenUp(BlockManager):
    """Blocks of the prefix cache count as taken: once they fill the pool, no request is admitted."""

    def can_hold(self, sequence: Sequence, num_tokens: int, hits: list[int]) -> bool:
        num_blank = len(self.blank) + len(hits)
        is_admitted = sequence.request_id in self.tables or self.limit is None
        has_room = is_admitted or self.num_blocks_for(num_tokens) <= num_blank
        return has_room and super().can_hold(sequence, num_tokens, hits)


@planted(Promise.P1, Cause.CRASH, "NVIDIA/Megatron-LM#5822")
class HitsAreCountedAsRoom(BlockManager):
    """Cached blocks that a newcomer takes over also count as room for its other tokens."""

    def can_hold(self, sequence: Sequence, num_tokens: int, hits: list[int]) -> bool:
        return super().can_hold(sequence, num_tokens - len(hits) * self.block_size, hits)
