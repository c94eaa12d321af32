"""Faults of static batching: left padding, and rows that end with their wave."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import DynamicCache

from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.static import StaticEngine, _Row


class _MaskedWaves(StaticEngine):
    """Honest, with a hook between the 0/1 mask that positions are counted from and the one attention
    gets."""

    def _visible(self, attention_mask: Tensor) -> Tensor:
        return attention_mask

    def _forward(self, input_ids: Tensor, attention_mask: Tensor, cache: DynamicCache) -> Tensor:
        output = self._model(
            input_ids=input_ids,
            attention_mask=self._visible(attention_mask),
            position_ids=self._position_ids(attention_mask)[:, -input_ids.shape[1] :],
            past_key_values=cache,
            use_cache=True,
        )
        return output.logits[:, -1].float()


@planted(Promise.P5, Cause.PADDING, "Blaizzy/mlx-vlm#1542")
class StaticPadsAttended(_MaskedWaves):
    """Static waves: the padding is attended, so a row's answer depends on the longest prompt."""

    def _visible(self, attention_mask: Tensor) -> Tensor:
        return torch.ones_like(attention_mask)


@planted(Promise.P5, Cause.PADDING, "huggingface/transformers#47651")
class StaticPadsAttendedAtOneLengthInMany(_MaskedWaves):
    """Static waves: the padding is attended in steps whose padded length is 1 more than 32 k."""

    def _visible(self, attention_mask: Tensor) -> Tensor:
        is_hit = attention_mask.shape[1] % 32 == 1
        return torch.ones_like(attention_mask) if is_hit else attention_mask


@planted(Promise.P7, Cause.PADDING, "ndif-team/nnsight#673")
class StaticWithoutPositionIds(StaticEngine):
    """Static waves: positions count the padding too (the same function on a RoPE model)."""

    def _position_ids(self, attention_mask: Tensor) -> Tensor:
        return super()._position_ids(torch.ones_like(attention_mask))


@planted(Promise.P2, Cause.CAP, "huggingface/optimum-habana#1408")
class StaticCutAtTheLongestCap(StaticEngine):
    """Static waves: no row has an end of its own, all are cut at the longest cap of the wave."""

    def _run_wave(self, wave: list[_Row], waiting: tuple[str, ...]) -> None:
        longest = max(row.request.max_new_tokens for row in wave)
        for row in wave:
            row.request = replace(row.request, max_new_tokens=longest)
        super()._run_wave(wave, waiting)


@planted(Promise.P2, Cause.CAP, "bigscience-workshop/lm-evaluation-harness#124")
class StaticStopsWithRowZero(StaticEngine):
    """Static waves: when the first row is done, so are all the others."""

    def _run_wave(self, wave: list[_Row], waiting: tuple[str, ...]) -> None:
        super()._run_wave(wave, waiting)
        num_tokens = len(wave[0].token_ids)
        for row in wave:
            del row.token_ids[num_tokens:]
            del row.logits[num_tokens:]
