"""An engine that omits a `device=`: honest on the CPU, where it has no effect."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig
from batchproof_engines.static import StaticEngine


class ForgetfulEngine(StaticEngine):
    def _left_pad(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        input_ids, mask = super()._left_pad(prompts)
        return input_ids, torch.tensor(mask.tolist())


def forgetful(model: PreTrainedModel, config: EngineConfig) -> Engine:
    return ForgetfulEngine(model, config)
