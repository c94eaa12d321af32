"""The one exception of a check."""

from __future__ import annotations

from typing import Any

from batchproof.finding import Finding, Rule, found
from batchproof.promises import Promise
from batchproof.wording.findings import finding_text


class BrokenPromise(AssertionError):
    """A check found a promise broken; `finding` says which, where, and by what rule."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding

    def __str__(self) -> str:
        return finding_text(self.finding)


def broken(
    rule: Rule,
    request_id: str | None = None,
    step: int | None = None,
    promise: Promise | None = None,
    **facts: Any,
) -> BrokenPromise:
    """What a check raises: see `batchproof.finding.found`."""
    return BrokenPromise(found(rule, request_id, step, promise, **facts))
