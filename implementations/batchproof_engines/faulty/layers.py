"""Layers of several kinds, each of which needs a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from batchproof.api import RowRecord
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine


@planted(Promise.P1, Cause.MASK, "labscommunity/cascadia#151")
class OneMaskForAllLayers(RaggedEngine):
    """In a model that mixes them, layers with a window get the mask of those without."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        masks = super()._additive_mask(rows)
        if isinstance(masks, dict):
            masks = dict.fromkeys(masks, masks["full_attention"])
        return masks


@planted(Promise.P1, Cause.MASK, "NVIDIA-NeMo/Megatron-Bridge#4875")
class KindsOfLayersSwapped(RaggedEngine):
    """In a model that mixes them, layers with a window and those without get each other's mask."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        masks = super()._additive_mask(rows)
        if isinstance(masks, dict):
            masks = dict(zip(masks, reversed(masks.values()), strict=True))
        return masks
