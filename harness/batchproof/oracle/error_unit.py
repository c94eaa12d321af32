"""E, the unit of all tolerances: the reference's own logit error against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Self

import torch
from torch import Tensor

from batchproof.statistics import share_bound

LEAST_SHARE = 0.1  # of the steps of a calibration
SHARE_RISK = 1e-6  # chance at which the true share is larger

Calibration = tuple[Sequence[int], Tensor, Tensor]
"""The reference's tokens of one answer, its logits and the exact ones, both `(num_tokens, vocab)`,
centred, in float64."""


@dataclass(frozen=True, slots=True)
class ErrorUnit:
    """E, over `num_steps` steps."""

    max_abs: float
    rms: float  # over the vocabulary, at the worst step: an answer may have only one
    num_steps: int
    num_flips: int  # steps at which float64 would have chosen another token
    near_tie_share: float  # at most this share of steps has a margin within 2 kappa E, so may flip

    @classmethod
    def measured(cls, answers: Sequence[Calibration], kappa: float) -> Self:
        """Returns E of these answers; `kappa` is the bound on errors in units of E."""
        error = torch.cat([logits - exact for _, logits, exact in answers])
        exact = torch.cat([exact for _, _, exact in answers])
        tokens = torch.tensor([token for token_ids, _, _ in answers for token in token_ids])
        margin = exact.topk(2).values.diff().abs().flatten()
        max_abs = error.abs().max().item()
        bound = 2 * kappa * max_abs
        return cls(
            max_abs=max_abs,
            rms=error.pow(2).mean(dim=-1).max().sqrt().item(),
            num_steps=len(margin),
            num_flips=int((exact.argmax(-1) != tokens).sum()),
            near_tie_share=_share_within(bound, margin),
        )


def _share_within(bound: float, margins: Tensor) -> float:
    """Returns an upper bound of the share of all steps whose margin is at most `bound`.

    Of a few hundred steps often none is that close, which says little of thousands. So it counts a
    tenth of them, the closest, and scales down by the width: small margins are spread evenly.
    """
    num_within = max(int((margins <= bound).sum()), ceil(LEAST_SHARE * len(margins)))
    width = max(bound, margins.sort().values[num_within - 1].item())
    return share_bound(num_within, len(margins), SHARE_RISK) * bound / width
