"""The exception that all checks raise."""

from __future__ import annotations

from typing import Any

from batchproof.findings.finding import Finding, Rule, found
from batchproof.findings.finding_text import finding_text
from batchproof.requirements.promises import Promise


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
    """Returns the exception for a finding; arguments and errors are those of
    `batchproof.findings.finding.found`."""
    return BrokenPromise(found(rule, request_id, step, promise, **facts))
