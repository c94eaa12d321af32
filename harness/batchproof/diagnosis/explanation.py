"""An engine's answer, and how well a mistake explains it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from batchproof.findings.causes import Cause

# A mistake must bring the distance to the engine's logits down to this share of the honest one's.
EXPLAINED_SHARE = 0.1
ROUNDING_SHARE = 0.5
ROUNDING_LEAVES = 1e-3


@dataclass(frozen=True, slots=True)
class Explanation:
    """A mistake that explains the answer: its cause, and `text`, words an engineer can act on.

    `share` is the part of the distance between the right logits and the engine's that it leaves; None
    if only tokens could be compared.
    """

    cause: Cause
    text: str
    share: float | None
    num_outputs: int
    extent: str  # "all" steps; the first wrong one and "later" ones; that "one" only

    @property
    def badness(self) -> float:
        """Returns the share, but at least what rounding leaves: below that all are equally good."""
        return max(self.share or 0.0, ROUNDING_LEAVES)

    def words(self) -> str:
        """Returns the line of evidence for the report."""
        if self.share is None:
            weak = " (one token fits many mistakes)" if self.num_outputs == 1 else ""
            return f"a reference with this mistake gives its tokens from the first wrong one on{weak}"
        made = {
            "all": f"a reference with this mistake gives the logits of all {self.num_outputs} outputs",
            "later": f"a reference that makes it from then on gives {self.num_outputs} outputs' logits",
            "one": "a reference that makes it once gives the logits there",
        }[self.extent]
        rest = f", but for {self.share:.1%} of the difference"
        return made + ("" if self.share < ROUNDING_LEAVES else rest)


@dataclass(frozen=True, slots=True)
class Observed:
    """The engine's answer from the first wrong output on, and the logits of the reference there.

    `tokens` has shape `(n,)`, `logits` and `honest` have shape `(n, vocab)`.
    """

    tokens: Tensor
    logits: Tensor | None  # float64, centred
    honest: Tensor  # float64, centred
    tolerance: float

    def first(self) -> Observed:
        """Returns the first wrong output alone."""
        logits = None if self.logits is None else self.logits[:1]
        return Observed(self.tokens[:1], logits, self.honest[:1], self.tolerance)

    def share(self, predicted: Tensor, is_rounding: bool) -> float | None:
        """Returns the error of the prediction `(n, vocab)` as a share of the reference's error; None if
        it is too large for an explanation. NaN explains nothing: its argmax is any token."""
        if predicted.isnan().any():
            return None
        if self.logits is None:
            fits = torch.equal(predicted.argmax(-1), self.tokens)
            return 0.0 if fits else None
        missed, honest = (self.logits - predicted), (self.logits - self.honest)
        if is_rounding:
            share = (missed.pow(2).mean() / honest.pow(2).mean()).sqrt().item()
            return share if share < ROUNDING_SHARE else None
        share = (missed.abs().max() / honest.abs().max()).item()
        is_close = bool(missed.abs().max() <= self.tolerance) and share < 0.3
        return share if share < EXPLAINED_SHARE or is_close else None
