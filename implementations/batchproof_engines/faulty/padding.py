"""Padding that affects results in the waves of static batching."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.static import PAD_TOKEN_ID, StaticEngine


class _MaskedWaves(StaticEngine):
    """Honest by itself; `_visible` turns the 0/1 mask that positions are counted from into
    attention's."""

    def _visible(self, attention_mask: Tensor, num_new: int) -> Tensor:  # noqa: ARG002
        return attention_mask

    def _forward(self, input_ids: Tensor, attention_mask: Tensor, cache: dict[str, Any]) -> Tensor:
        output = self._model(
            input_ids=input_ids,
            attention_mask=self._visible(attention_mask, input_ids.shape[1]),
            position_ids=self._position_ids(attention_mask)[:, -input_ids.shape[1] :],
            use_cache=True,
            **cache,
        )
        cache["past_key_values"] = output.past_key_values
        logits: Tensor = output.logits
        return logits


@planted(Promise.P5, Cause.PADDING, "huggingface/transformers#47651")
class StaticPadsAttendedAtOneLengthInMany(_MaskedWaves):
    """Static waves: the padding is attended in steps whose padded length is 1 more than a multiple of
    32."""

    def _visible(self, attention_mask: Tensor, num_new: int) -> Tensor:  # noqa: ARG002
        is_hit = attention_mask.shape[1] % 32 == 1
        return torch.ones_like(attention_mask) if is_hit else attention_mask


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
