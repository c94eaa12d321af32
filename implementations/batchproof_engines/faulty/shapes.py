"""Engines that declare the same bits in every batch, and let its shapes decide about them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import load_kernels
from batchproof_paged.tile_products import TILE, TileProducts

LONG_PROMPT = 10  # tokens


@planted(Promise.P20, Cause.SHAPES, "vllm-project/vllm#41480", batch_invariant=True)
class LastTileIsNotFilledUp(TileProducts):
    """Rows behind the last whole tile are multiplied as many as they are."""

    def multiply(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        num_rows = rows.numel() // rows.shape[-1]
        whole, rest = rows.view(num_rows, -1).split([num_rows - num_rows % TILE, num_rows % TILE])
        parts = [super().multiply(whole, weight, bias)] if len(whole) else []
        product = torch.cat([*parts, linear(rest, weight, bias)])
        return product.view(*rows.shape[:-1], len(weight))


@planted(Promise.P20, Cause.SHAPES, "Dao-AILab/flash-attention#2450", batch_invariant=True)
class DecodesAreSplitByTheLongest(BlockPool):
    """Several decodes share a call, whose longest sequence decides how the keys of all are summed."""

    def begin(self, batch: RaggedBatch) -> None:
        super().begin(batch)
        self._kernels = load_kernels("torch" if batch.num_decodes > 1 else "tile")


@planted(Promise.P20, Cause.SHAPES, "vllm-project/vllm#51902", batch_invariant=True)
class PromptOfAnotherChangesTheTiles(BlockPool):
    """A step with a prompt of ten tokens or more attends with other tiles, for all its rows."""

    def begin(self, batch: RaggedBatch) -> None:
        super().begin(batch)
        is_long = int(batch.query_lens.max()) >= LONG_PROMPT
        self._kernels = load_kernels("torch" if is_long else "tile")
