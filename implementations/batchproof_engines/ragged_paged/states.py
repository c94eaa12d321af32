"""A step as several batched passes, for models whose layers carry a recurrent state.

A state is that of one position, so such a model cannot take the tokens of several sequences as one row.
Decodes are one pass (B, 1), prompts and chunks a pass (B, n) for each length. Keys lie in blocks, as in
`engine`; a sequence's states lie in its lane.

A state cannot be cut, so a request takes over only as much of a known prefix as ends at a *checkpoint*,
a copy of the states. There are two in a prompt: behind its last full block, and behind the last block
of the prefix that was known when it came. So of several prompts that begin alike the second leaves a
checkpoint where the common part ends, and the third starts from there. Both places as in SGLang's radix
cache for such models (sgl-project/sglang#31181).
"""

import copy
from collections.abc import Hashable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from batchproof.api import Capability, Engine, EngineConfig
from batchproof_engines.model_support import (
    refuse_batch_dependent,
    refuse_other_attention,
    refuse_unbatchable,
)
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager, Prefix
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.trial_batch import probe_logits

States = list[LinearAttentionCacheLayerMixin]  # of the layers that carry some, a row per sequence


class Piece(NamedTuple):
    """Tokens of one sequence that are fed in one pass."""

    row: int  # of the step
    sequence: Sequence
    lane: int
    context_len: int
    query_len: int

    @property
    def end(self) -> int:
        """Returns the number of tokens that are computed after the pass."""
        return self.context_len + self.query_len


def joined(parts: list[tuple[States, int]]) -> States:
    """Returns new states with the given row of each of the given states; no tensor of theirs is
    shared."""
    rows = [row for _, row in parts]
    return [_joined(list(each), rows) for each in zip(*(states for states, _ in parts), strict=True)]


def _joined(values: list[Any], rows: list[int]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat([each[row : row + 1] for each, row in zip(values, rows, strict=True)])
    if isinstance(first, dict):
        return {key: _joined([each[key] for each in values], rows) for key in first}
    if isinstance(first, LinearAttentionCacheLayerMixin):
        result = copy.copy(first)
        vars(result).update(_joined([vars(each) for each in values], rows))
        return result
    return first


class StatesByLane:
    """The states of running sequences, and what former tenants have left in their lanes."""

    def __init__(self) -> None:
        self.lanes: dict[int, States] = {}

    def read(self, group: list[Piece]) -> States | None:
        """Returns a copy of the states that a pass starts from, row by row; None for prompts."""
        if not group[0].context_len:
            return None
        return joined([(self.lanes[piece.lane], 0) for piece in group])

    def write(self, group: list[Piece], states: States) -> None:
        for place, piece in enumerate(group):
            self.lanes[piece.lane] = joined([(states, place)])


class Checkpoints:
    """Copies of states, by all tokens before them. They are kept as long as the block that ends there
    is published."""

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks = blocks
        self.kept: dict[Prefix, States] = {}

    def num_resumable(self, sequence: Sequence, blocks: list[int]) -> int:
        """Returns behind how many of a known prefix's blocks the sequence can start."""
        nums = range(len(blocks), 0, -1)
        return next((num for num in nums if self.behind(sequence, num) is not None), 0)

    def behind(self, sequence: Sequence, num_blocks: int) -> States | None:
        return self.kept.get(self.blocks.prefix(sequence, num_blocks - 1))

    def places(self, sequence: Sequence) -> set[int]:
        """Returns how many tokens of a sequence are before each of its checkpoints."""
        if not self.blocks.has_prefix_cache:
            return set()
        size, table = self.blocks.block_size, self.blocks.tables[sequence.request_id]
        return {table.num_known_blocks * size, (len(sequence.token_ids) - 1) // size * size}

    def keep(self, piece: Piece, states: States, place: int) -> None:
        """Keeps one row of the states if the piece ends at a checkpoint."""
        if piece.end in self.places(piece.sequence):
            prefix = self.blocks.prefix(piece.sequence, piece.end // self.blocks.block_size - 1)
            self.kept[prefix] = joined([(states, place)])

    def forget(self) -> None:
        """Drops checkpoints whose block was evicted."""
        self.kept = {each: kept for each, kept in self.kept.items() if each in self.blocks.published}


class StatefulEngine(RaggedPagedEngine):
    """Serves models with recurrent states."""

    capabilities = RaggedPagedEngine.capabilities - {
        Capability.SPECULATION,
        Capability.EXACT_DRAFTS,  # a state has no way back
        Capability.ADAPTERS,  # no model with states has any
    }
    states_class = StatesByLane
    checkpoints_class = Checkpoints

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._states = self.states_class()
        self._checkpoints = self.checkpoints_class(self._scheduler.blocks)
        self._scheduler.num_resumable = self._checkpoints.num_resumable

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        self._checkpoints.forget()
        self.restore(plan)
        found: list[list[Tensor]] = [[] for _ in plan.rows]
        lanes = self._scheduler.lanes
        pieces = [
            self.pieces(Piece(place, sequence, lanes[row.request_id], row.context_len, num_new))
            for place, ((sequence, num_new), row) in enumerate(
                zip(plan.scheduled, plan.rows, strict=True)
            )
        ]
        for due in zip_longest(*pieces):
            for group in self.groups([piece for piece in due if piece is not None]):
                for piece, logits in zip(group, self.feed(group), strict=True):
                    found[piece.row].append(logits)
        return torch.cat([logits for each in found for logits in each])

    def restore(self, plan: SchedulerOutput) -> None:
        """Gives sequences that start behind a known prefix the states of its end."""
        for (sequence, _), row in zip(plan.scheduled, plan.rows, strict=True):
            if row.context_len and row.request_id in plan.admitted:
                num_blocks = row.context_len // self._config.block_size
                kept = self._checkpoints.behind(sequence, num_blocks)
                assert kept is not None, "the scheduler has asked `num_resumable`"
                self._states.lanes[self._scheduler.lanes[row.request_id]] = kept

    def pieces(self, piece: Piece) -> Iterator[Piece]:
        """Yields the parts of a row that are fed one after another: each ends at a checkpoint or with
        the row."""
        start, stop = piece.context_len, piece.end
        places = {each for each in self._checkpoints.places(piece.sequence) if start < each < stop}
        for end in sorted({*places, stop}):
            yield piece._replace(context_len=start, query_len=end - start)
            start = end

    def groups(self, pieces: list[Piece]) -> list[list[Piece]]:
        groups: dict[Hashable, list[Piece]] = {}
        for piece in pieces:
            groups.setdefault(self.kind(piece), []).append(piece)
        return list(groups.values())

    def kind(self, piece: Piece) -> Hashable:
        """Returns what pieces have in common that are fed together."""
        return piece.query_len, bool(piece.context_len)

    def feed(self, group: list[Piece]) -> Tensor:
        """Feeds B pieces of n tokens each in one pass; returns their logits (B, n, vocab)."""
        device = self._model.device
        tokens = [each.sequence.token_ids[each.context_len : each.end] for each in group]
        longest = max(each.context_len for each in group)
        # Keys are padded on the left, so that all contexts end in the same column.
        seen = [[0] * (longest - each.context_len) + [1] * each.end for each in group]
        cache = self.cache(group, longest)
        output = self._model(
            input_ids=torch.tensor(tokens, device=device),
            position_ids=torch.tensor([range(each.context_len, each.end) for each in group]).to(device),
            attention_mask=torch.tensor(seen, device=device),
            past_key_values=cache,
            use_cache=True,
        )
        self.keep(group, cache)
        return output.logits

    def cache(self, group: list[Piece], longest: int) -> DynamicCache:
        cache = DynamicCache(config=self._model.config)
        states = iter(self._states.read(group) or ())
        for index, layer in enumerate(cache.layers):
            if isinstance(layer, LinearAttentionCacheLayerMixin):
                cache.layers[index] = next(states, layer)
            elif longest:
                rows = []
                for piece in group:
                    slots = self.slots_of(piece.sequence.request_id, 0, piece.context_len)
                    pads = (0, 0, longest - piece.context_len, 0)
                    rows.append([pad(each, pads) for each in self._pool.read(index, slots)])
                layer.update(*(torch.cat(each) for each in zip(*rows, strict=True)))
        return cache

    def keep(self, group: list[Piece], cache: DynamicCache) -> None:
        """Keeps the keys and states that a pass has made, and copies of states at checkpoints."""
        for index, layer in enumerate(cache.layers):
            if not isinstance(layer, LinearAttentionCacheLayerMixin):
                for place, piece in enumerate(group):
                    slots = self.slots_of(piece.sequence.request_id, piece.context_len, piece.end)
                    new = [
                        each[place : place + 1, :, -piece.query_len :]
                        for each in (layer.keys, layer.values)
                    ]
                    self._pool.write(index, slots, new, self.num_slots)
        states = [each for each in cache.layers if isinstance(each, LinearAttentionCacheLayerMixin)]
        self._states.write(group, states)
        for place, piece in enumerate(group):
            self._checkpoints.keep(piece, states, place)


def ragged_paged(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Builds a paged teaching engine, with states if the model has some. Raises
    `UnsupportedModelError` for a model whose attention ignores our mask."""
    layers = DynamicCache(config=model.config).layers
    is_stateful = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)
    refuse = refuse_batch_dependent if is_stateful else refuse_unbatchable
    refuse("ragged-paged", model)
    refuse_other_attention("ragged-paged", model)
    engine_class = StatefulEngine if is_stateful else RaggedPagedEngine
    probe_logits("ragged-paged", model, engine_class)
    return engine_class(model, config)
