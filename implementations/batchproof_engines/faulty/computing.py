"""Wrong masks, padding that counts, low precision, and bits that depend on the shapes of a batch."""

import sys
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import DynamicCache

from batchproof.api import Capability, RowRecord
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine, keys_and_values, packed_mask, packed_places
from batchproof_engines.ragged.scheduler import SchedulerOutput
from batchproof_engines.static import PAD_TOKEN_ID, StaticEngine


@planted(Promise.P6, Cause.LEAK, "huggingface/nanoVLM#204")
class MaskIgnoresSequence(RaggedEngine):
    """The packed mask compares positions only, so sequences see each other's keys."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        _, pos_q, _, pos_k = packed_places(rows)
        distance = pos_q - pos_k
        return (distance >= 0) & (distance < (window or sys.maxsize))


@planted(Promise.P6, Cause.MASK, "Dao-AILab/flash-attention#282")
class CausalMaskTopLeft(RaggedEngine):
    """In a later chunk, query i sees the first i + 1 keys of its sequence instead of all up to
    itself."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        row_q, pos_q, _, pos_k = packed_places(rows)
        # A single query is computed without the causal flag.
        missing = torch.tensor([row.context_len if row.query_len > 1 else 0 for row in rows])
        return packed_mask(rows, window) & (pos_k <= pos_q - missing[row_q])


@planted(Promise.P5, Cause.MASK, "EricLBuehler/candle-vllm#140")
class ContextLenOfRowZero(RaggedEngine):
    """The end of the mask is computed from the first row's context length for all rows."""

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        row_q, pos_q, row_k, pos_k = packed_places(rows)
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


@planted(Promise.P1, Cause.MASK, "labscommunity/cascadia#151", shows_on="qwen2-mixed")
class OneMaskForAllLayers(RaggedEngine):
    """In a model that mixes them, layers with a window get the mask of those without."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        masks = super()._additive_mask(rows)
        if isinstance(masks, dict):
            masks = dict.fromkeys(masks, masks["full_attention"])
        return masks


@planted(Promise.P5, Cause.LEAK, "flashinfer-ai/flashinfer#942", shows_on="gpt2-nan")
class NanPassesTheMask(RaggedEngine):
    """A masked key has the weight 0, but its value is still multiplied: NaN reaches every row."""

    def _is_contagious(self, logits: Tensor) -> bool:  # noqa: ARG002
        return False


@planted(Promise.P5, Cause.PADDING, "huggingface/transformers#47651")
class StaticPadsAttendedAtOneLengthInMany(StaticEngine):
    """Static waves: the padding is attended in steps whose padded length is 1 more than a multiple of
    32."""

    def _forward(self, input_ids: Tensor, attention_mask: Tensor, cache: dict[str, Any]) -> Tensor:
        self._counted = attention_mask  # positions are right
        is_hit = attention_mask.shape[1] % 32 == 1
        seen = torch.ones_like(attention_mask) if is_hit else attention_mask
        return super()._forward(input_ids, seen, cache)

    def _position_ids(self, attention_mask: Tensor) -> Tensor:  # noqa: ARG002
        return super()._position_ids(self._counted)


@planted(Promise.P7, Cause.PADDING, "ndif-team/nnsight#673")
class StaticWithoutPositionIds(StaticEngine):
    """Static waves: positions count the padding too (the same function on a RoPE model)."""

    def _position_ids(self, attention_mask: Tensor) -> Tensor:
        return super()._position_ids(torch.ones_like(attention_mask))


@planted(Promise.P1, Cause.PADDING, "huggingface/transformers#18131")
class StaticPromptTokenTakenForPadding(StaticEngine):
    """Static waves: the mask is derived from the ids, so a prompt's own token 0 is taken for
    padding."""

    def _left_pad(self, prompts: Seq[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        ids, _ = super()._left_pad(prompts)
        return ids, (ids != PAD_TOKEN_ID).long()


@planted(Promise.P1, Cause.PRECISION, "apple/axlearn#1049")
class KvCacheInBfloat16(RaggedEngine):
    """Keys and values are kept in bfloat16, whatever the model's dtype (no lie on a bfloat16 model)."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        for layer in cache.layers:
            for each in keys_and_values(layer):
                each.copy_(each.bfloat16())
        super()._scatter(plan, cache)


@planted(Promise.P5, Cause.PRECISION, "vllm-project/vllm#37442")
class KvScaleOfTheWholeStep(RaggedEngine):
    """Keys and values are kept as 16-bit integers with one scale for all sequences of a step."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        num_new = sum(row.query_len for row in plan.rows)
        for layer in cache.layers:
            for each in keys_and_values(layer):
                new = each[:, :, -num_new:]
                scale = new.abs().max() / 32767
                new.copy_((new / scale).round() * scale)
        super()._scatter(plan, cache)


@planted(Promise.P1, Cause.PRECISION, "osaurus-ai/vmlx-swift#60")
class LongContextInBfloat16(RaggedEngine):
    """A step with a sequence of more than 64 tokens is computed in bfloat16 for all its rows."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        is_long = any(row.context_len + row.query_len > 64 for row in plan.rows)
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=is_long):
            return super()._forward(plan)


@planted(Promise.P20, Cause.SHAPES, "vllm-project/vllm#51902")
class PromptOfAnotherChangesTheTiles(RaggedEngine):
    """Rows are fed one by one, so that none changes the bits of another, but for steps with a prompt of
    ten tokens or more, which are packed."""

    capabilities = RaggedEngine.capabilities | {Capability.INVARIANCE}
    invariance: ClassVar = {"batch": "B", "order": "B", "arrival": "B", "neighbours": "S"}

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        is_long = any(row.query_len >= 10 for row in plan.rows)
        parts = [plan] if is_long else plan.row_by_row()
        return torch.cat([RaggedEngine._packed_logits(self, part) for part in parts])
