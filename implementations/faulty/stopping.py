"""Wrong ends: the cap, the EOS, and the reason given."""

from __future__ import annotations

from harness.api import FinishReason
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged_scheduler import Sequence


@planted(Promise.P2, Cause.CAP, "vllm-project/vllm#28172")
class CapOffByOne(Sequence):
    """The cap is tested with > for >=: a request without EOS gets one token too many."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        is_beyond = len(self.output_token_ids) > self.request.max_new_tokens
        if self.finish_reason is not FinishReason.STOP:
            self.finish_reason = FinishReason.LENGTH if is_beyond else None


@planted(Promise.P3, Cause.EOS, "lvyufeng/PocketLLM#133")
class EosUncheckedOnFirstToken(Sequence):
    """The token that the prefill yields is not tested for EOS."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        if len(self.output_token_ids) == 1 and self.finish_reason is FinishReason.STOP:
            is_capped = self.request.max_new_tokens == 1
            self.finish_reason = FinishReason.LENGTH if is_capped else None


@planted(Promise.P3, Cause.EOS, "sgl-project/sglang#30291")
class LengthWhenEosFallsOnTheCap(Sequence):
    """The cap is tested before the EOS: an EOS as the last allowed token finishes with LENGTH."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        if len(self.output_token_ids) == self.request.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH
