"""Static batching with waves of another shape."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from batchproof.api import Completion, EngineConfig, Request
from batchproof_engines.odd.oddity import odd
from batchproof_engines.static import StaticEngine

BUCKET = 8


@odd
class WavesSortedByLength(StaticEngine):
    """Static waves of similar lengths: the shortest prompts go first, whatever their place in the
    call."""

    def _served(self, requests: Sequence[Request]) -> list[Completion]:
        answers = super()._served(sorted(requests, key=lambda each: len(each.prompt_token_ids)))
        served = {answer.request_id: answer for answer in answers}
        return [served[each.request_id] for each in requests]


@odd
class WavesInBuckets(StaticEngine):
    """Static waves are padded to the next multiple of 8, even if all prompts have the same length."""

    def _left_pad(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        input_ids, attention_mask = super()._left_pad(prompts)
        num_pads = -input_ids.shape[1] % BUCKET
        return pad(input_ids, (num_pads, 0)), pad(attention_mask, (num_pads, 0))


@odd
class WavesOfHalfTheSlots(StaticEngine):
    """Static waves have half as many rows as there are slots."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, replace(config, max_num_seqs=max(1, config.max_num_seqs // 2)))
