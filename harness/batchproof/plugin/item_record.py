"""The record of a test on its way from the process of the test to the recorder. Imports no torch."""

from __future__ import annotations

import pytest

from batchproof.plugin.writers import junit
from batchproof.records.decode import decode, encode
from batchproof.records.trial_record import TrialRecord

ATTRIBUTE = "batchproof"  # of a report; xdist passes JSON values on
IDENTITY = pytest.StashKey[TrialRecord]()  # the record as far as it is known before the test's body
RECORD = pytest.StashKey[TrialRecord]()  # the whole record, once the test has ended


def attach_record(report: pytest.TestReport, record: TrialRecord) -> None:
    """Makes the report carry the record."""
    vars(report)[ATTRIBUTE] = encode(record)


def describe_for_junit(report: pytest.TestReport, record: TrialRecord) -> None:
    """Adds the properties that JUnit XML shows of a conformance test."""
    report.user_properties += junit.properties(record)


def record_of(report: pytest.TestReport) -> TrialRecord | None:
    """Returns the record that the report carries; None for a test that is no conformance test, and for
    a phase that does not end its test."""
    carried = getattr(report, ATTRIBUTE, None)
    return None if carried is None else decode(TrialRecord, carried)
