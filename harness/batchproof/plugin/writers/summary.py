"""What the terminal shows at the end of a session: the table engine x promise, and what limits it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

import pytest

from batchproof.plugin.writers.table import adequacies, error_units, notes, num_compared, table
from batchproof.requirements.tally import Outcome

NOTHING_COMPARED = "NOTHING WAS COMPARED: this run proves nothing about any engine"
Line = tuple[str, bool]  # and whether it is bad news


def summary_lines(outcomes: list[Outcome]) -> Iterator[Line]:
    """Yields the lines of a session with conformance tests."""
    yield from ((line, False) for line in table(outcomes))
    for model, error_unit in error_units(outcomes):
        yield f"model {model}: E {error_unit:.2g}, the reference's own worst logit error", False
    for model, adequacy, is_too_little in adequacies(outcomes):
        verdict = "INADEQUATE: equal tokens prove little on this model" if is_too_little else "adequate"
        yield f"model {model}: {verdict}; {adequacy}", is_too_little
    yield from ((f"note: {note}", False) for note in notes(outcomes))
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong:
        yield f"{num_wrong} failed by a wrong case, not by an engine: see above", True
    if num_own := sum(record.is_own_failure for _, record in outcomes) - num_wrong:
        yield f"{num_own} failed by the harness itself, not by an engine: see above", True
    if not num_compared(outcomes) and not any(outcome == "failed" for outcome, _ in outcomes):
        yield NOTHING_COMPARED, True


def empty_selection(option: Namespace, num_run: int, deselected: Sequence[pytest.Item]) -> str | None:
    """Returns that -k and -m left no conformance test, for a session without one; None if nothing is to
    be said. `num_run` counts tests of other things."""
    words = [f"{k} {v!r}" for k, v in (("-k", option.keyword), ("-m", option.markexpr)) if v]
    if getattr(option, "benchmark_only", False) and num_run:
        return None
    if words and (not num_run or any("trial" in item.fixturenames for item in deselected)):  # type: ignore[attr-defined]
        return f"no conformance test was selected by {' '.join(words)}: this run proves nothing"
    return None
