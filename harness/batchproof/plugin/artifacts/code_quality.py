"""The problems of a run as a code-quality report of GitLab, which shows them beside a merge request's
lines."""

from __future__ import annotations

from collections.abc import Iterable

from batchproof.plugin.artifacts.problems import Problem


def code_quality(problems: Iterable[Problem]) -> list[dict[str, object]]:
    """Returns the report as JSON values. GitLab needs a place for each entry."""
    return [
        {
            "description": f"{each.promise}: {each.headline}",
            "check_name": f"batchproof/{each.promise.id}",
            "fingerprint": each.fingerprint,
            "severity": "critical",
            "location": {"path": each.at.file, "lines": {"begin": each.at.line}},
        }
        for each in problems
        if each.at is not None
    ]
