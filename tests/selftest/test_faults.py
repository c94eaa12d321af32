"""The suite proves itself: each planted fault is caught by a test of the promise it breaks.

Quick and the same each time: curated cases first, one seed, no diagnosis. What `python -m harness
faults` finds on all models and several seeds is in `results/faults.json` (see `test_campaign.py`).
"""

from __future__ import annotations

import pytest
import torch

from harness.campaign.findings import Effort
from harness.campaign.shelter import SharedLaboratory
from harness.hunt import hunt
from harness.registry import faults

FAULTS = faults()
TIME_LIMIT_S = 5.0  # an honest call takes a fraction of a second
MODELS = ("gpt2-random", "mistral-window")  # absolute positions; RoPE and a window; both quick
EFFORT = Effort(profile="default")


@pytest.fixture(scope="module")
def shared() -> SharedLaboratory:
    return SharedLaboratory(torch.device("cpu"), torch.float32, TIME_LIMIT_S)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_by_a_test_of_its_promise(
    name: str, shared: SharedLaboratory
) -> None:
    promise = FAULTS[name].promise.id
    arguments = ["-x", "-m", f"promise(id='{promise}')", "--hypothesis-seed=1", "--diagnose-for=0"]
    arguments += [f"--model={model}" for model in MODELS]
    findings = hunt(f"fault:{name}", arguments, shared, EFFORT)
    assert findings.catches, f"no test of {promise} caught {name}:\n{findings.output}"
    catch = findings.catches[0]
    assert catch.broken is not None, f"the suite broke instead of telling: {catch.report}"


def test_the_faults_break_at_least_twelve_promises_in_their_summaries() -> None:
    assert len({fault.promise for fault in FAULTS.values()}) >= 12
    assert all(fault.summary and fault.thread for fault in FAULTS.values())
