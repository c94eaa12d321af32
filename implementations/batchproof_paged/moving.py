"""Carries out what the policy has decided of blocks (`block_manager.Move`): keys and values are copied
to the host's memory and back, and from another engine's pool.

On a CPU the host's memory is another pool in the same memory, on CUDA a pinned one.
"""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from batchproof_paged.block_manager import OFFLOADED, TRANSFERRED, Move
from batchproof_paged.blocks import BlockPool, stored
from batchproof_paged.kernels import LayerCache


class BlockMover:
    """Owns the host's memory of a pool: `num_slots` blocks. `source`: the pool of the other engine."""

    def __init__(self, pool: BlockPool, num_slots: int, source: BlockPool | None = None) -> None:
        self._pool, self._num_slots, self._source = pool, num_slots, source
        self._hosts: dict[int, LayerCache] = {}  # by layer

    @torch.inference_mode()
    def carry_out(self, moves: Seq[Move]) -> None:
        """Copies blocks in this order: what one reads a later one may write. On CUDA the stream keeps
        the order."""
        self._pool.reserve_blocks(max(move.block for move in moves))
        sources = self._source.layers if self._source is not None else {}
        for layer, like in (sources or self._pool.layers).items():
            pool = self._pool.layers.get(layer)
            pool = pool or self._pool.allocate(layer, like.keys[0], like.values[0])
            if layer not in self._hosts:
                self._hosts[layer] = self._host_of(pool)
            host, source = self._hosts[layer], sources.get(layer, pool)
            self._copy(moves, pool.keys, host.keys, source.keys)
            self._copy(moves, pool.values, host.values, source.values)

    def _copy(self, moves: Seq[Move], pool: Tensor, host: Tensor, source: Tensor) -> None:
        """Copies blocks of one tensor of a layer, (capacity, block_size, num_kv_heads, dim)."""
        for kind, block, other in moves:
            here = pool[stored(block)]
            there = source[stored(other)] if kind == TRANSFERRED else host[other]
            target, read = (there, here) if kind == OFFLOADED else (here, there)
            target.copy_(read, non_blocking=True)

    def _host_of(self, like: LayerCache) -> LayerCache:
        def slots(cells: Tensor) -> Tensor:
            shape = self._num_slots, *cells.shape[1:]
            return torch.empty(shape, dtype=cells.dtype, device="cpu", pin_memory=cells.is_cuda)

        return LayerCache(slots(like.keys), slots(like.values))
