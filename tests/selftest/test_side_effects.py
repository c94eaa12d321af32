"""P15: what an engine leaves changed is seen, and comparisons compute exactly."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from batchproof.api import Completion, Request
from batchproof.checks.environment import EXACT, positions, set_back
from batchproof.requirements.promises import Promise
from batchproof.run.devices import torch_restored
from batchproof.run.failures import ConformanceFailure
from batchproof.run.registry import EngineSpec
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload
from batchproof_engines.static import StaticEngine
from batchproof_lab.suite_run import Effort, run_suite
from tests.selftest.conftest import LaboratoryFor

# What an engine may write. The old and the new way to ask for TF32 are both here: after the new one
# torch refuses to read the old, and that was taken for an engine that raised.
FLIPS = [
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True",
    "torch.backends.cuda.matmul.allow_fp16_accumulation = True",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.allow_tf32 = True",
    "torch.backends.cudnn.fp32_precision = 'tf32'",
    "torch.backends.cudnn.benchmark = True",
    "torch.backends.cudnn.deterministic = True",
    "torch.backends.cudnn.enabled = False",
    "torch.backends.cuda.enable_cudnn_sdp(False)",
    "torch.backends.cuda.enable_flash_sdp(False)",
    "torch.backends.cuda.enable_mem_efficient_sdp(False)",
    "torch.backends.cuda.enable_math_sdp(False)",
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.mkldnn.enabled = False",
    "torch.backends.mha.set_fastpath_enabled(False)",
    "torch.set_float32_matmul_precision('medium')",
    "torch.set_autocast_enabled(True)",
    "torch.set_autocast_enabled('cpu', True)",
    "torch.autograd.set_detect_anomaly(True)",
    "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "torch.set_flush_denormal(True)",
    "torch.use_deterministic_algorithms(True, warn_only=True)",
    "torch.utils.deterministic.fill_uninitialized_memory = False",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_num_threads(torch.get_num_threads() + 1)",
    "numpy.seterr(all='raise')",
]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with torch_restored():
        yield


def flipping(statement: str) -> EngineSpec:
    class Flipping(StaticEngine):
        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            done = super().generate(requests)
            exec(statement, {"torch": torch, "numpy": np})
            return done

    return EngineSpec("flipping", Flipping)


@pytest.mark.parametrize("statement", FLIPS)
def test_an_engine_that_leaves_a_switch_otherwise_is_caught(
    laboratory_for: LaboratoryFor, statement: str
) -> None:
    before, lab = positions(), laboratory_for(60.0)
    trial = Trial(lab, flipping(statement), lab.oracle("gpt2-random"), Promise.P1, frozenset())
    with pytest.raises(ConformanceFailure, match="changed while the engine worked") as caught:
        trial.run(Workload((Request("a", (1, 2, 3), 2),)))
    assert caught.value.failure.promise is Promise.P15
    set_back(before)
    assert positions() == before


def test_comparisons_compute_exactly_here() -> None:
    assert {each.name: each.read() for each in EXACT} == {each.name: each.exact for each in EXACT}


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


@pytest.mark.parametrize(
    ("thing", "place"), list(zip(CHANGES, cycle(("InFactory", "InFirstCall")), strict=False))
)
def test_a_change_made_once_and_first_is_seen_and_harms_nobody_else(
    tmp_path: Path, laboratory_for: LaboratoryFor, thing: str, place: str
) -> None:
    lab, engine = laboratory_for(10.0), tmp_path / "once.py"
    engine.write_text(ONCE.format(statement=CHANGES[thing]))
    arguments = [TEST, "--engine=static", "--model=gpt2-random", "--diagnose-for=0"]
    findings = run_suite(f"{engine}:{place}", arguments, lab, Effort(profile="quick", max_examples=1))
    assert len(findings.catches) == 1, findings.output
    (catch,) = findings.catches
    assert place in catch.test, "the engine after it is not blamed"
    assert f"P15 no side effects is broken: the {thing} changed while the engine was" in catch.report
    assert findings.passed.total() == 1
