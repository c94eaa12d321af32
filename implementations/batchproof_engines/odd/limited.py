"""Engines that take less than the contract asks for, and declare what."""

from transformers import PreTrainedModel

from batchproof.api import EngineConfig, Request, SamplingParams
from batchproof.decoding.sampling import DRAFTS, SamplingLimits
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler

NARROW = SamplingLimits(
    ranges={"temperature": (0, 2), "repetition_penalty": (1, 1.5), "logit_bias": (-20, 20)},
    apart=(("min_p", "top_p"), ("min_p", DRAFTS), ("logit_bias", DRAFTS)),
)


@odd
class KernelsForLargeBlocks(RaggedPagedEngine):
    """Blocks are of 32 tokens or a multiple, by declaration; it ends if it is asked for others."""

    block_size_multiple = 32

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        size = config.block_size
        if size % self.block_size_multiple and size != EngineConfig().block_size:
            raise RuntimeError(f"block_size is {size}, but there is no kernel for it")
        super().__init__(model, config)


class _Narrow(PagedScheduler):
    """Refuses what is out of the declared ranges, and ends at what is declared apart."""

    def refusal(self, request: Request) -> str | None:
        asked = request.sampling or SamplingParams()
        for name, (low, high) in NARROW.ranges.items():
            value = getattr(asked, name)
            values = [bias for _, bias in value] if name == "logit_bias" else [value]
            if name in asked.changed and not all(low <= each <= high for each in values):
                return f"{name} is {value}, but must be from {low} to {high}"
        used = {*asked.changed} | ({DRAFTS} if self._config.num_speculative_tokens else set())
        wrong = super().refusal(request)
        if wrong is None and any(used.issuperset(each) for each in NARROW.apart):
            raise RuntimeError(f"{sorted(used)} are not supported together")
        return wrong


@odd
class TakesNarrowRanges(RaggedPagedEngine):
    """Parameters have narrower ranges than in the contract, and some exclude each other, by
    declaration."""

    sampling_limits = NARROW
    scheduler_class = _Narrow
