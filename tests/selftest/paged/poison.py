"""Fills the cells that no sequence may read, between the steps of an engine."""

from typing import Any

import torch
from torch import Tensor

from batchproof_paged.blocks import BlockPool


@torch.inference_mode()
def poison_blank(engine: Any, value: float) -> None:
    """Fills all blank blocks of a paged engine's pool, in all layers."""
    pool, blocks = engine._backend, engine._scheduler.blocks
    for block in list(blocks._blank):
        for layer in pool._layers.values():
            for cells in (layer.keys, layer.values):
                _fill(pool, cells, block, blocks.block_size, value)


def _fill(pool: Any, cells: Tensor, block: int, block_size: int, value: float) -> None:
    if isinstance(pool, BlockPool):
        if block + 1 < len(cells):
            cells[block + 1] = value
        return
    column, lane = divmod(block, len(cells))
    cells[lane, :, column * block_size : (column + 1) * block_size] = value


def poisoned(engine: Any, value: float) -> Any:
    """Returns the engine, which then fills its blank blocks before each step."""
    run = engine._run

    def run_poisoned(plan: Any) -> Any:
        poison_blank(engine, value)
        return run(plan)

    engine._run = run_poisoned
    return engine
