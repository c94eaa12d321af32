"""Where findings become an exception."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from batchproof.findings.finding import Finding, Rule, found
from batchproof.findings.finding_text import finding_text

MOST_FINDINGS = 16  # looked at in one run: an engine that is wrong everywhere need not be measured


class BrokenPromise(AssertionError):
    """Checks found promises broken; `finding` is the first, by the order of the checks, and `others`
    are the first of each further rule."""

    def __init__(self, finding: Finding, *others: Finding) -> None:
        super().__init__(finding, *others)
        self.finding = finding
        self.others = others

    def __str__(self) -> str:
        return finding_text(self.finding)


def require(findings: Iterable[Finding]) -> None:
    """Raises `BrokenPromise` with the first finding of each rule, unless there is none."""
    by_rule: dict[Rule, Finding] = {}
    try:
        for each in islice(findings, MOST_FINDINGS):
            by_rule.setdefault(each.rule, each)
    except Exception:
        # A later check reads values that the first finding has shown to be wrong: what it raises must
        # not replace that finding, which decides. Without one nothing is swallowed.
        if not by_rule:
            raise
    if by_rule:
        raise BrokenPromise(*by_rule.values())


def broken(rule: Rule, request_id: str | None = None, **facts: Any) -> BrokenPromise:
    """Returns the exception for one finding; arguments and errors are those of `found`."""
    return BrokenPromise(found(rule, request_id, **facts))
