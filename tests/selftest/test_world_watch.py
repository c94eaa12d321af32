"""What an engine changes once, before anything is compared, is seen all the same."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from batchproof_lab.suite_run import Effort, SharedLaboratory, run_suite
from tests.selftest.conftest import LaboratoryFor

ONCE = """
import os
import torch
from batchproof_engines.reference import ReferenceEngine

is_done = False

def once(model):
    global is_done
    if not is_done:
        {statement}
    is_done = True

class InFactory(ReferenceEngine):
    def __init__(self, model, config):
        super().__init__(model, config)
        once(model)

class InFirstCall(ReferenceEngine):
    capabilities = None  # so that it is asked for a first answer

    def generate(self, requests):
        once(self._model)
        return super().generate(requests)
"""
TEST = "tests/conformance/test_side_effects.py::test_serving_leaves_the_world_as_it_was"
CHANGES = {
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
    "training mode": "model.train()",
    "weights and buffers": "model.lm_head.weight.data[0, 0] += 1",
    "working directory": "os.chdir('/')",
    "environment variables": "os.environ['HOME'] = '/nowhere'",
}


@pytest.fixture(scope="module")
def lab(laboratory_for: LaboratoryFor) -> SharedLaboratory:
    return laboratory_for(10.0)


@pytest.mark.parametrize(
    ("thing", "place"), list(zip(CHANGES, cycle(("InFactory", "InFirstCall")), strict=False))
)
def test_a_change_made_once_and_first_is_seen_and_harms_nobody_else(
    tmp_path: Path, lab: SharedLaboratory, thing: str, place: str
) -> None:
    engine = tmp_path / "once.py"
    engine.write_text(ONCE.format(statement=CHANGES[thing]))
    arguments = [TEST, "--engine=static", "--model=gpt2-random", "--diagnose-for=0"]
    findings = run_suite(f"{engine}:{place}", arguments, lab, Effort(profile="quick", max_examples=1))
    assert len(findings.catches) == 1, findings.output
    (catch,) = findings.catches
    assert place in catch.test, "the engine after it is not blamed"
    assert f"P15 no side effects is broken: the {thing} changed while the engine was" in catch.report
    assert findings.num_passed == 1
