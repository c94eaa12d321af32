"""An engine that omits a `device=`: honest on the CPU, where it has no effect."""

from collections.abc import Sequence

import torch
from torch import Tensor

from batchproof_engines.static import StaticEngine


class Forgetful(StaticEngine):
    def _left_pad(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        input_ids, mask = super()._left_pad(prompts)
        return input_ids, torch.tensor(mask.tolist())
