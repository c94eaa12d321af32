"""Wrong attention masks: a query sees too many keys or too few."""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from itertools import accumulate

import torch
from torch import Tensor

from batchproof.api import (
    RowRecord,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine, packed_mask


def _places(rows: Seq[RowRecord]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns row and position of each query (total_q, 1), then of each key (1, total_kv)."""
    fed = [
        (index, position)
        for index, row in enumerate(rows)
        for position in range(row.context_len, row.context_len + row.query_len)
    ]
    cached = [
        (index, position) for index, row in enumerate(rows) for position in range(row.context_len)
    ]
    row_q, pos_q = torch.tensor(fed)[:, None].unbind(-1)
    row_k, pos_k = torch.tensor(cached + fed)[None].unbind(-1)
    return row_q, pos_q, row_k, pos_k


@planted(Promise.P6, Cause.LEAK, "huggingface/nanoVLM#204")
class MaskIgnoresSequence(RaggedEngine):
    """The packed mask compares positions only, so sequences see each other's keys."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        _, pos_q, _, pos_k = _places(rows)
        distance = pos_q - pos_k
        return (distance >= 0) & (distance < (window or sys.maxsize))


@planted(Promise.P6, Cause.MASK, "Dao-AILab/flash-attention#282")
class CausalMaskTopLeft(RaggedEngine):
    """In a later chunk, query i sees the first i + 1 keys of its sequence instead of all up to
    itself."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        row_q, pos_q, _, pos_k = _places(rows)
        # A single query is computed without the causal flag.
        missing = torch.tensor([row.context_len if row.query_len > 1 else 0 for row in rows])
        return packed_mask(rows, window) & (pos_k <= pos_q - missing[row_q])


@planted(Promise.P5, Cause.MASK, "EricLBuehler/candle-vllm#140")
class ContextLenOfRowZero(RaggedEngine):
    """The end of the mask is computed from the first row's context length for all rows."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        row_q, pos_q, row_k, pos_k = _places(rows)
        surplus = torch.tensor([row.context_len - rows[0].context_len for row in rows])
        mask = (row_q == row_k) & (pos_k <= pos_q - surplus[row_q])
        return mask & (pos_q - pos_k < (window or sys.maxsize))


@planted(Promise.P6, Cause.MASK, "pytorch/examples#649")
class FutureKeyVisible(RaggedEngine):
    """A query of a prompt also sees the next token's key, though `attention_mask` does not show it."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        bias = super()._additive_mask(rows)
        num_cached = sum(row.context_len for row in rows)
        ends = set(accumulate(row.query_len for row in rows))
        for each in bias.values() if isinstance(bias, dict) else [bias]:
            for query in range(each.shape[-2]):
                if query + 1 not in ends:
                    each[..., query, num_cached + query + 1] = 0.0
        return bias


@planted(Promise.P6, Cause.MASK, "huggingface/transformers#41184")
class WindowOffByOne(RaggedEngine):
    """The sliding window is one key wider than the model's (no lie on a model without a window)."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        return super()._mask(rows, None if window is None else window + 1)


@planted(Promise.P1, Cause.MASK, "labscommunity/cascadia#151")
class OneMaskForAllLayers(RaggedEngine):
    """In a model that mixes them, layers with a window get the mask of those without."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        masks = super()._additive_mask(rows)
        if isinstance(masks, dict):
            masks = dict.fromkeys(masks, masks["full_attention"])
        return masks


@planted(Promise.P5, Cause.LEAK, "vllm-project/vllm#15492")
class EmptyContextIsMerged(RaggedEngine):
    """A new prompt beside a later chunk also attends to the first key of that chunk's context."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        bias = super()._additive_mask(rows)
        later = [i for i, row in enumerate(rows) if row.context_len and row.query_len > 1]
        if not later:
            return bias
        key = sum(row.context_len for row in rows[: later[0]])
        for row, end in zip(rows, accumulate(row.query_len for row in rows), strict=True):
            for each in bias.values() if isinstance(bias, dict) else [bias]:
                if row.context_len == 0:
                    each[..., end - row.query_len : end, key] = 0.0
        return bias


@planted(Promise.P5, Cause.LEAK, "flashinfer-ai/flashinfer#942")
class NanPassesTheMask(RaggedEngine):
    """A masked key has the weight 0, but its value is still multiplied: NaN reaches every row."""

    def _is_contagious(self, logits: Tensor) -> bool:  # noqa: ARG002
        return False
