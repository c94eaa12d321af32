"""The properties of a conformance test in JUnit XML."""

from __future__ import annotations

from batchproof.records.trial_record import TrialRecord


def properties(record: TrialRecord) -> list[tuple[str, object]]:
    """Returns names and values, those without a value left out."""
    found: dict[str, object] = {"engine": record.engine, "model": record.model}
    found["promise"] = ", ".join(record.counted_for)
    if failure := record.failure:
        found |= {"rule": failure.rule, "cause": failure.cause, "replay": failure.replay}
        found["others"] = ", ".join(f"{each.promise} {each.rule}" for each in failure.others)
        at = failure.raised_at or record.defined_at
        found["source"] = at and f"{at.file}:{at.line}"
    return [(name, value) for name, value in found.items() if value]
