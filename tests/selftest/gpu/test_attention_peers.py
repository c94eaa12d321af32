"""The attention of others is what it is said to be before it is timed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.gpu.attention import BLOCK_SIZE, Crowd, Sizes
from tests.gpu.attention_peers import (
    compare,
    flashinfer_attention,
    torch_attention,
    torch_backends,
)


class Paged:
    """What FlashInfer documents of its wrapper, in plain torch."""

    BatchDecodeWithPagedKVCacheWrapper = property(lambda self: lambda _workspace, **_options: self)

    def plan(
        self, bounds: Any, blocks: Any, last: Any, *_sizes: int, sm_scale: float, **_: Any
    ) -> None:
        self.blocks = [blocks[i:j] for i, j in pairwise(bounds)]
        self.last, self.scale = last, sm_scale

    def run(self, query: Any, cells: Any, out: Any) -> Any:
        for row, (blocks, last) in enumerate(zip(self.blocks, self.last, strict=True)):
            num = (len(blocks) - 1) * BLOCK_SIZE + int(last)
            keys, values = (each[blocks].flatten(0, 1)[:num].float() for each in cells)
            keys, values = (
                each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (keys, values)
            )
            weights = (torch.einsum("hd,khd->hk", query[row].float(), keys) * self.scale).softmax(1)
            out[row] = torch.einsum("hk,khd->hd", weights, values)
        return out


def test_the_attention_of_others_reads_the_cells_it_is_compared_on() -> None:
    crowd = Crowd("tiny", Sizes(2, 40), torch.device("cpu"))
    (flash,) = torch_backends(is_cuda=False)
    for attend, cells in (
        torch_attention(flash, crowd),
        flashinfer_attention(Paged(), True, crowd),
    ):
        got = attend(crowd.layers[0])
        compare(crowd, got, cells)
        with pytest.raises(ArithmeticError, match="of the largest value"):
            compare(crowd, got, cells.flip(0))
