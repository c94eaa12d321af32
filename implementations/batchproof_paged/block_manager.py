"""Who owns which block of the KV cache: block ids, no tensors.

A block is in one of three states:

    used     in the tables of running sequences, as many as share it (its reference count)
    cached   in no table, but its content is known: a prompt with the same prefix may reuse it
    blank    in no table, and its content is not needed

    blank --allocate--> used --release--> cached (if it was published) or blank
    cached --adopt--> used              cached --evict, least recently used--> blank

Cached and blank blocks are both *free*: a cached one is evicted whenever a block is needed.

**Offload.** With `num_host_blocks`, what an evicted block holds goes on in a slot of host memory, under
the same key and content id, until as many others have been evicted since. `match` finds it there, and
`adopt` gives it a block again. Here both are entries of a list, `moves`: whoever stores the tensors
carries them out in order, before a step writes.

**Prefix cache.** A full block whose tokens are computed is published under (content id of the block
before it, its own tokens). The key contains the tokens themselves, so a hash collision does no harm. A
content id is never used twice, so blocks that followed an evicted one cannot be found. That of nothing
is 0, or a negative one of the sequence's adapter.

**Lanes.** Ids are laid out as a grid, id = column * num_lanes + lane. With `has_lanes`, a sequence in
lane l gets for its i-th block the id of its own lane at column i, if that is free: on a CPU the pool is
stored lane by lane, and such a sequence is one view. Any other block it needs comes from the far end.
Elsewhere the id has no meaning, and the lowest is taken, so that a pool that grows on demand stays
small.

Paging: Kwon et al., "PagedAttention", SOSP 2023.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from batchproof_paged.sequence import Sequence

Key = tuple[int, tuple[int, ...]]  # content id of the block before, own tokens


OFFLOADED, RESTORED, TRANSFERRED = "blocks offloaded", "blocks restored", "blocks transferred"


class Move(NamedTuple):
    """What a block holds goes to a slot of the host's memory, or comes from one, or from a block of
    another engine (`transfer`)."""

    kind: str  # one of those above
    block: int
    other: int  # the slot, or the block of the other engine


class BlankBlocks:
    """A set of block ids from which one can be taken by choice, or the highest (else the lowest).

    The result depends only on the content of the set, not on the order of insertion, so an engine's
    past cannot affect its output. Each operation is O(log n); an id that was removed by choice stays in
    the heap until it reaches the top.
    """

    def __init__(self, is_highest_first: bool) -> None:
        self._sign = -1 if is_highest_first else 1
        self._blocks: set[int] = set()
        self._heap: list[int] = []
        self._in_heap: set[int] = set()  # so that an id is in the heap only once

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._blocks.add(block)
            if block not in self._in_heap:
                self._in_heap.add(block)
                heappush(self._heap, self._sign * block)

    def remove(self, block: int) -> None:
        self._blocks.remove(block)

    def pop(self) -> int:
        """Removes and returns the highest (else the lowest) block. Raises `IndexError` if the set is
        empty."""
        while True:
            block = self._sign * heappop(self._heap)
            self._in_heap.remove(block)
            if block in self._blocks:
                self._blocks.remove(block)
                return block


class BlockManager:
    """The one owner of block ids. With `num_blocks` None, the pool grows with the longest sequence."""

    def __init__(
        self,
        num_blocks: int | None,
        block_size: int,
        num_lanes: int,
        has_prefix_cache: bool = False,
        has_lanes: bool = True,
        num_host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.num_lanes = num_lanes
        self.num_columns = 0  # of the grid so far
        self._limit = num_blocks
        self._has_prefix_cache = has_prefix_cache
        self._has_lanes = has_lanes
        self._blank = BlankBlocks(is_highest_first=has_lanes)
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_users: dict[int, int] = {}  # of the used blocks
        self._published: dict[Key, tuple[int, int]] = {}  # -> block, content id
        self._keys: dict[int, Key] = {}  # block -> under what it is published
        self._offloaded: OrderedDict[Key, tuple[int, int]] = OrderedDict()  # -> slot, content id
        self._free_slots = list(range(num_host_blocks))
        self.moves: list[Move] = []  # not carried out yet
        self._last_content_id = 0
        if num_blocks is not None:
            self._add_columns(ceil(num_blocks / num_lanes))

    @property
    def num_free_blocks(self) -> int | None:
        """Returns the number of cached and blank blocks, or None for a pool without a limit."""
        return None if self._limit is None else self._limit - len(self._num_users)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def can_hold(self, sequence: Sequence, num_tokens: int, hits: tuple[Key, ...] = ()) -> bool:
        """Returns whether there is room for the sequence's first `num_tokens` tokens if it reuses
        `hits`."""
        if self._limit is None:
            return True
        blocks = [self._published[key][0] for key in hits if key in self._published]
        owned = len(sequence.block_table) + len(blocks)
        taken = sum(block not in self._num_users for block in blocks)  # these still count as free
        needed = self.num_blocks_for(num_tokens) - owned + taken
        return needed <= self._limit - len(self._num_users)

    def match(self, sequence: Sequence) -> tuple[Key, ...]:
        """Returns the keys of the published and offloaded blocks with the longest prefix of the
        sequence, excluding its last token.

        At least one token must be computed, or there would be no logits to choose the next one from.
        """
        if not self._has_prefix_cache:
            return ()
        hits: list[Key] = []
        content_id, size = sequence.root, self.block_size
        for start in range(0, sequence.num_tokens - size, size):
            key = (content_id, tuple(sequence.token_ids[start : start + size]))
            known = self._published.get(key) or self._offloaded.get(key)
            if known is None:
                break
            _, content_id = known
            hits.append(key)
        return tuple(hits)

    def adopt(self, sequence: Sequence, hits: tuple[Key, ...]) -> None:
        """Gives the blocks found by `match` to a sequence that has none yet; offloaded ones are
        restored."""
        assert not sequence.block_table, f"{sequence.request_id} already owns blocks"
        # All are taken out of the caches first: to restore one, another may be evicted.
        offloaded = {key: self._offloaded.pop(key) for key in hits if key in self._offloaded}
        for key in hits:
            if key in self._published:
                block, _ = self._published[key]
                self._cached.pop(block, None)
                self._num_users[block] = self._num_users.get(block, 0) + 1
        for column, key in enumerate(hits):
            if key in offloaded:
                slot, content_id = offloaded[key]
                block = self._take(column, sequence.lane)
                self._num_users[block] = 1
                self._published[key], self._keys[block] = (block, content_id), key
                self.moves.append(Move(RESTORED, block, slot))
                self._free_slots.append(slot)
            sequence.block_table.append(self._published[key][0])
        sequence.num_computed_tokens = len(hits) * self.block_size
        sequence.num_published_blocks = len(hits)
        sequence.content_id = self._published[hits[-1]][1] if hits else sequence.root

    def allocate(self, sequence: Sequence, num_tokens: int) -> None:
        """Gives the sequence the blocks it lacks for its first `num_tokens` tokens; `can_hold` has
        agreed."""
        for column in range(len(sequence.block_table), self.num_blocks_for(num_tokens)):
            block = self._take(column, sequence.lane)
            self._num_users[block] = 1
            sequence.block_table.append(block)

    def publish(self, sequence: Sequence) -> None:
        """Offers the sequence's full and computed blocks to other sequences."""
        if not self._has_prefix_cache:
            return
        size = self.block_size
        while (sequence.num_published_blocks + 1) * size <= sequence.num_computed_tokens:
            start = sequence.num_published_blocks * size
            block = sequence.block_table[sequence.num_published_blocks]
            key = (sequence.content_id, tuple(sequence.token_ids[start : start + size]))
            if key not in self._published:  # else another sequence has published the same content
                self._published[key] = block, self._content_id_of(key)
                self._keys[block] = key
            sequence.content_id = self._published[key][1]
            sequence.num_published_blocks += 1

    def forget(self, running: Iterable[Sequence] = ()) -> None:
        """Forgets all that is cached. What a running sequence publishes from here on, a block that it
        has begun included, is behind a content id that nothing leads to."""
        for sequence in running:
            self._last_content_id += 1
            sequence.content_id = self._last_content_id
        self._blank.add(self._cached)
        self._cached.clear()
        self._published.clear()
        self._keys.clear()
        self._free_slots += [slot for slot, _ in self._offloaded.values()]
        self._offloaded.clear()

    def _content_id_of(self, key: Key) -> int:
        """Returns the content id of a block that is published: that of an equal one, which the host
        need not keep, or a new one."""
        if key in self._offloaded:
            slot, content_id = self._offloaded.pop(key)
            self._free_slots.append(slot)
            return content_id
        self._last_content_id += 1
        return self._last_content_id

    def release(self, sequence: Sequence) -> None:
        blank = []
        for block in reversed(sequence.block_table):  # so that the tail is evicted first
            self._num_users[block] -= 1
            if self._num_users[block]:
                continue
            del self._num_users[block]
            if block in self._keys:
                self._cached[block] = None
            else:
                blank.append(block)
        self._blank.add(blank)
        sequence.block_table = []
        sequence.num_computed_tokens = sequence.num_published_blocks = 0
        sequence.content_id = sequence.root

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raises `AssertionError` unless every block is in exactly one state, consistently with the
        tables."""
        users = Counter(block for sequence in running for block in sequence.block_table)
        assert users == self._num_users, f"tables hold {users}, but {self._num_users} are counted"
        everywhere = [*self._blank, *self._cached, *self._num_users]
        assert len(everywhere) == len(set(everywhere)), "a block is in two states"
        total = self.num_columns * self.num_lanes if self._limit is None else self._limit
        assert set(everywhere) == set(range(total)), f"of {total} blocks {len(everywhere)} are known"
        assert set(self._cached) <= set(self._keys), "a cached block holds nothing known"
        assert not set(self._blank) & set(self._keys), "a blank block is published"
        by_key = {key: block for key, (block, _) in self._published.items()}
        assert by_key == {key: block for block, key in self._keys.items()}, "index and keys differ"
        assert not self._published.keys() & self._offloaded.keys(), "a block is offloaded and is not"
        slots = [*self._free_slots, *(slot for slot, _ in self._offloaded.values())]
        assert len(slots) == len(set(slots)), "a slot of the host is in two states"
        for sequence in running:
            held, known = len(sequence.block_table), sequence.num_computed_tokens
            assert held * self.block_size >= known, f"{sequence.request_id} has tokens without a block"

    def _take(self, column: int, lane: int) -> int:
        """Returns a free block: its own lane's at that column, else any blank one, else the least
        recently used."""
        preferred = column * self.num_lanes + lane
        if self._limit is None:
            is_used_up = not self._blank and not self._cached
            is_short = column >= self.num_columns if self._has_lanes else is_used_up
            if is_short:
                self._add_columns(max(column + 1, 2 * self.num_columns))
        if self._has_lanes and preferred in self._blank:
            self._blank.remove(preferred)
            return preferred
        if self._blank:
            return self._blank.pop()
        block, _ = self._cached.popitem(last=False)
        key = self._keys.pop(block)
        _, content_id = self._published.pop(key)
        self._offload(block, key, content_id)
        return block

    def _offload(self, block: int, key: Key, content_id: int) -> None:
        """Keeps in a slot, if there are any, what an evicted block holds."""
        if not self._free_slots and self._offloaded:
            _, (slot, _) = self._offloaded.popitem(last=False)
            self._free_slots.append(slot)
        if self._free_slots:
            slot = self._free_slots.pop()
            self._offloaded[key] = slot, content_id
            self.moves.append(Move(OFFLOADED, block, slot))

    def _add_columns(self, num_columns: int) -> None:
        first, last = self.num_columns * self.num_lanes, num_columns * self.num_lanes
        self.num_columns = num_columns
        self._blank.add(range(first, min(last, self._limit or last)))
