"""Who owns which block of the KV cache: block ids, no tensors.

A block is in one of three states:

    used     in the tables of running sequences, as many as share it (its reference count)
    cached   in no table, but its content is known: a prompt that begins alike may reuse it
    blank    in no table, and its content is not needed

    blank --take--> used --release--> cached (if it is published) or blank
    cached --adopt--> used            cached --evict, least recently used--> blank

A full block is published under the adapter and all tokens of its sequence up to its end, so that a hash
collision does no harm, and a block behind an evicted one is not found.

Paging: Kwon et al., "PagedAttention", SOSP 2023.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from batchproof_engines.ragged.scheduler import Sequence

Prefix = tuple[int, ...]  # the number of an adapter, and tokens


@dataclass(slots=True)
class Table:
    """What a running sequence owns: `blocks[i]` holds the keys of positions i * block_size and on."""

    blocks: list[int] = field(default_factory=list)
    num_known_blocks: int = 0  # of its first tokens, in the prefix cache at its admission


class BlockManager:
    """The one owner of block ids. With `num_blocks` None the pool grows when it is used up."""

    def __init__(self, num_blocks: int | None, block_size: int, has_prefix_cache: bool) -> None:
        self.block_size = block_size
        self.limit = num_blocks
        self.has_prefix_cache = has_prefix_cache
        self.num_blocks = num_blocks or 0  # so far
        self.tables: dict[str, Table] = {}  # of the running sequences, by request
        self.blank: deque[int] = deque(range(self.num_blocks))
        self.cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self.num_users: dict[int, int] = {}  # of the used blocks
        self.published: dict[Prefix, int] = {}  # -> block
        self.prefixes: dict[int, Prefix] = {}  # block -> under what it is published

    @property
    def num_free_blocks(self) -> int | None:
        """Returns the number of cached and blank blocks, or None for a pool without a limit."""
        return None if self.limit is None else self.limit - len(self.num_users)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def prefix(self, sequence: Sequence, column: int) -> Prefix:
        """Returns what the sequence's block of that column is published under."""
        return (sequence.root, *sequence.token_ids[: (column + 1) * self.block_size])

    def match(self, sequence: Sequence) -> list[int]:
        """Returns the published blocks of the sequence's longest known prefix, without its last token,
        which must be fed for there to be logits."""
        hits: list[int] = []
        while self.has_prefix_cache and (len(hits) + 1) * self.block_size < len(sequence.token_ids):
            block = self.published.get(self.prefix(sequence, len(hits)))
            if block is None:
                break
            hits.append(block)
        return hits

    def can_hold(self, sequence: Sequence, num_tokens: int, hits: list[int]) -> bool:
        """Returns whether there is room for the sequence's first `num_tokens` tokens if it reuses
        `hits`."""
        if self.limit is None:
            return True
        table = self.tables.get(sequence.request_id, Table())
        taken = sum(block not in self.num_users for block in hits)  # these still count as free
        needed = self.num_blocks_for(num_tokens) - len(table.blocks) - len(hits) + taken
        return needed <= self.limit - len(self.num_users)

    def adopt(self, sequence: Sequence, hits: list[int]) -> None:
        """Gives a sequence that has no table one with the blocks found by `match`."""
        for block in hits:
            self.cached.pop(block, None)
            self.num_users[block] = self.num_users.get(block, 0) + 1
        self.tables[sequence.request_id] = Table(list(hits))
        sequence.num_computed_tokens = len(hits) * self.block_size

    def allocate(self, sequence: Sequence, num_tokens: int) -> None:
        """Gives the sequence the blocks it lacks for its first `num_tokens` tokens; `can_hold` has
        agreed."""
        blocks = self.tables[sequence.request_id].blocks
        while len(blocks) < self.num_blocks_for(num_tokens):
            block = self.take()
            self.num_users[block] = 1
            blocks.append(block)

    def take(self) -> int:
        """Returns a free block: a blank one, a new one if the pool may grow, or the least recently
        used."""
        if self.blank:
            return self.blank.popleft()
        if self.limit is None and not self.cached:
            self.num_blocks += 1
            return self.num_blocks - 1
        block, _ = self.cached.popitem(last=False)
        self.evict(block)
        return block

    def evict(self, block: int) -> None:
        del self.published[self.prefixes.pop(block)]

    def forget(self) -> None:
        """Forgets all that is cached, while no sequence runs."""
        self.blank.extend(self.cached)
        self.cached.clear()
        self.published.clear()
        self.prefixes.clear()

    def publish(self, sequence: Sequence) -> None:
        """Offers the sequence's full and computed blocks to other sequences."""
        if not self.has_prefix_cache:
            return
        table = self.tables[sequence.request_id]
        for column in range(sequence.num_computed_tokens // self.block_size):
            block, prefix = table.blocks[column], self.prefix(sequence, column)
            if prefix not in self.published and block not in self.prefixes:
                self.published[prefix] = block
                self.prefixes[block] = prefix

    def release(self, sequence: Sequence) -> None:
        for block in reversed(self.tables.pop(sequence.request_id).blocks):  # the tail is evicted first
            self.num_users[block] -= 1
            if self.num_users[block]:
                continue
            del self.num_users[block]
            if block in self.prefixes:
                self.cached[block] = None
            else:
                self.blank.append(block)
