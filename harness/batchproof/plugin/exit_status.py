"""The exit status of a session. It fails closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from batchproof.plugin.writers.table import num_compared
from batchproof.requirements.tally import Outcome

SIGTERM_STATUS = 143


@dataclass(frozen=True)
class SessionEnd:
    """How a session ended."""

    status: int  # pytest's own
    num_failed: int = 0  # tests, those of other things among them
    is_cut_short: bool = False  # by its failures, as with -x
    signal_status: int | None = None  # of the signal that ended it
    has_problem: bool = False  # that a worker found, which ran no test
    is_open: bool = False  # requirements that were asked for were not run


def exit_status(end: SessionEnd, outcomes: Sequence[Outcome]) -> int:
    """Returns the status: failed as well if nothing, or too little, was compared, and a usage error if
    nothing failed but wrong cases."""
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if end.has_problem or (num_wrong and num_wrong == end.num_failed):
        return pytest.ExitCode.USAGE_ERROR
    if end.signal_status == SIGTERM_STATUS:
        return SIGTERM_STATUS
    if end.status == pytest.ExitCode.INTERRUPTED and end.is_cut_short and end.signal_status is None:
        # xdist takes what -x ended for interrupted, as it is where tests could not be collected.
        return pytest.ExitCode.TESTS_FAILED if end.num_failed else end.status
    is_clean = end.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    is_failed = is_clean and bool(outcomes) and _proves_little(outcomes)
    is_failed |= end.status == pytest.ExitCode.OK and end.is_open
    return pytest.ExitCode.TESTS_FAILED if is_failed else end.status


def _proves_little(outcomes: Sequence[Outcome]) -> bool:
    return not num_compared(outcomes) or any(record.is_inadequate for _, record in outcomes)
