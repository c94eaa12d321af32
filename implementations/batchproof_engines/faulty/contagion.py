"""Values that are not finite, and reach the neighbours of the request that computed them."""

from __future__ import annotations

from torch import Tensor

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine


@planted(Promise.P5, Cause.LEAK, "flashinfer-ai/flashinfer#942")
class NanPassesTheMask(RaggedEngine):
    """A masked key has the weight 0, but its value is still multiplied: NaN reaches every row."""

    def _is_contagious(self, logits: Tensor) -> bool:  # noqa: ARG002
        return False
