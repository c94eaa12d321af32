"""The suite proves itself: each planted fault is caught by a test of the promise it breaks.

Quick and the same each time: one seed, no diagnosis, and first the test that `results/faults.json`
names for it. What `python -m batchproof faults` finds on all models and several seeds is in that file
(see `test_campaign.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest
import torch

from batchproof.campaign.findings import Effort
from batchproof.campaign.shared_laboratory import SharedLaboratory
from batchproof.campaign.suite_run import run_suite
from batchproof.places import ROOT
from batchproof.run.registry import faults

FAULTS = faults()
KILLS = json.loads((ROOT / "results" / "faults.json").read_text())["faults"]
TIME_LIMIT_S = 3.0  # an honest call takes a fraction of a second
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
    for where in (*_known_catch(name), ["-m", f"promise(id='{promise}')", *_on(MODELS)]):
        findings = run_suite(
            f"fault:{name}", ["-x", "--hypothesis-seed=1", "--diagnose-for=0", *where], shared, EFFORT
        )
        if findings.catches:
            break
    assert findings.catches, f"no test of {promise} caught {name}:\n{findings.output}"
    catch = findings.catches[0]
    assert catch.broken is not None, f"the suite broke instead of telling: {catch.report}"


def _known_catch(name: str) -> Iterator[list[str]]:
    """Where the table saw the fault caught with the same seed: its tests, its models."""
    kills = KILLS.get(name, {"kills": []})["kills"]
    yield from ([kill["caught_by"], *_on(kill["models"])] for kill in kills if kill["seed"] == 1)


def _on(models: Iterable[str]) -> list[str]:
    return [f"--model={model}" for model in models]


def test_the_faults_break_at_least_twelve_promises_in_their_summaries() -> None:
    assert len({fault.promise for fault in FAULTS.values()}) >= 12
    assert all(fault.summary and fault.thread for fault in FAULTS.values())
