"""The suite proves itself: each planted fault is caught by a test of the promise it breaks."""

from __future__ import annotations

import pytest

from harness.hunt import hunt
from harness.registry import faults

FAULTS = faults()
TIME_LIMIT_S = 5  # an honest call takes a fraction of a second
MODELS = ("gpt2-random", "mistral-window")  # absolute positions; RoPE and a window; both quick


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_by_a_test_of_its_promise(name: str) -> None:
    promise = FAULTS[name].promise.id
    arguments = ["-x", "-m", f"promise(id='{promise}')", f"--engine-time-limit={TIME_LIMIT_S}"]
    arguments += [f"--model={model}" for model in MODELS]
    findings = hunt(f"fault:{name}", arguments)
    assert findings.catches, f"no test of {promise} caught {name}:\n{findings.output}"
    catch = findings.catches[0]
    assert catch.broken is not None, f"the suite broke instead of telling: {catch.report}"


def test_the_faults_break_at_least_twelve_promises_in_their_summaries() -> None:
    assert len({fault.promise for fault in FAULTS.values()}) >= 12
    assert all(fault.summary and fault.thread for fault in FAULTS.values())
