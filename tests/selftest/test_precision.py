"""Precision declared for an engine: rounding is measured in it, and it excuses nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from batchproof.api import Completion, EngineConfig, Request
from batchproof.checks.answers import logit_findings
from batchproof.checks.broken import BrokenPromise, require
from batchproof.models import catalogue
from batchproof.models.by_module import ByModule
from batchproof.oracle.oracle import Oracle
from batchproof.oracle.precision import Precision
from batchproof.oracle.rounding import coarse, coarse_to_score
from batchproof_engines.reference import ReferenceEngine
from tests.selftest.conftest import HEAD, RunSuite, oracle_of

ROUNDING = """
from dataclasses import replace
from batchproof.oracle.rounding import coarse
from batchproof.oracle.precision import Precision
from batchproof_engines.reference import ReferenceEngine


class Rounding(ReferenceEngine):
    capabilities = frozenset()

    def __init__(self, model, config):
        super().__init__(coarse(model, Precision("bfloat16", "int8")), config)


class Lying(Rounding):
    def generate(self, requests):
        return super().generate(
            [replace(each, prompt_token_ids=each.prompt_token_ids[-9:]) for each in requests]
        )
"""


SUITE = f"""{HEAD}
import random


@pytest.mark.promise(id="P1")
def test_mini(trial):
    rng = random.Random(0)
    size = trial.subject.vocab_size
    prompts = [tuple(rng.randrange(size) for _ in range(rng.randint(1, 30))) for _ in range(12)]
    trial.check(Workload(tuple(Request(str(i), p, 12) for i, p in enumerate(prompts))))
"""


def test_an_engine_that_rounds_is_judged_by_its_own_rounding(run_suite: RunSuite) -> None:
    engines = ("--engine=mine.py:Rounding", "--engine=mine.py:Lying")
    said = ("--compute-dtype=bfloat16", "--kv-cache-dtype=int8")
    judged = run_suite(*said, *engines, test_mini=SUITE, mine=ROUNDING)
    assert "computed in bfloat16, int8 keys and values" in judged.output
    assert "1 failed, 1 passed" in judged.output, judged.output
    (failed,) = [line for line in judged.output.splitlines() if line.startswith("FAILED")]
    assert "mine.py:Lying" in failed
    unsaid = run_suite(engines[0])
    assert "1 failed" in unsaid.output


@pytest.mark.parametrize(("kind", "most"), [("fp8", 1 / 16), ("int8", 1 / 254), ("int4", 1 / 14)])
def test_weights_are_rounded_in_the_layers_alone(oracle: Oracle, kind: str, most: float) -> None:
    model = oracle.subject.model
    rounded = coarse(model, Precision(weights=kind)).state_dict()
    errors = {
        name: float((rounded[name] - weight).abs().max() / weight.abs().max())
        for name, weight in model.state_dict().items()
    }
    changed = {name for name, error in errors.items() if error > 0}
    layers = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    assert changed == {name for name in errors if name.endswith(layers)}
    assert max(errors.values()) <= most * 1.001  # scales are rounded as well


@pytest.mark.parametrize(
    "precision",
    [
        Precision("bfloat16", weights="fp8"),
        Precision("float16", weights="int4"),
        Precision("float16", weights="int4", has_rounded_ends=True),
        Precision("bfloat16", kv_cache="fp8"),
    ],
)
def test_a_large_model_is_scored_without_a_copy_to_the_bit(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = oracle_of("llama-random", torch.bfloat16).subject
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        wanted = coarse(subject.model, precision)(input_ids=ids).logits
        exact = subject.exact(input_ids=ids, use_cache=False).logits
        assert torch.equal(ByModule(subject.model, torch.float64)(input_ids=ids).logits, exact)
        own = {name: each.clone() for name, each in subject.model.state_dict().items()}
        monkeypatch.setattr(catalogue, "MAX_PARAMETERS_OF_COPIES", 0)
        assert torch.equal(coarse_to_score(subject, precision)(input_ids=ids).logits, wanted)
    assert all(torch.equal(own[name], each) for name, each in subject.model.state_dict().items())


class _Amplifying(ReferenceEngine):
    """A model that amplifies rounding in answers to one prompt a thousand times."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [
            off(each, 0.01) if request.prompt_token_ids == AMPLIFIED else each
            for request, each in zip(requests, super().generate(requests), strict=True)
        ]


AMPLIFIED, ORDINARY = (77, 3, 5), (78, 3, 5)


def off(completion: Completion, by: float) -> Completion:
    """The same tokens, from logits of which one is off."""
    assert completion.logits is not None
    logits = completion.logits.clone()
    logits[0, 0] -= by
    return replace(completion, logits=logits)


def test_an_input_that_amplifies_rounding_is_judged_by_its_own(oracle: Oracle) -> None:
    """Neither it nor a worse answer passes elsewhere."""
    amplifying = Oracle(oracle.subject, _Amplifying)
    requests = [Request("amplified", AMPLIFIED, 4), Request("ordinary", ORDINARY, 4)]
    config = EngineConfig(return_logits=True)
    amplified, ordinary = ReferenceEngine(oracle.subject.model, config).generate(requests)
    require(logit_findings(requests[0], off(amplified, 0.02), amplifying))
    for request, completion, judge in (
        (requests[0], off(amplified, 0.02), oracle),
        (requests[0], off(amplified, 0.2), amplifying),
        (requests[1], off(ordinary, 0.02), amplifying),
    ):
        with pytest.raises(BrokenPromise, match="logits"):
            require(logit_findings(request, completion, judge))
