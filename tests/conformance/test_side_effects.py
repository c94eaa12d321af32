"""P15: weights, config, RNG state, global settings and the caller's requests are as before."""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.api import EngineConfig, Request, SteppingEngine
from harness.promises import Promise
from harness.strategies import requests, workloads
from harness.trial import Trial
from harness.verdict import ConformanceFailure
from harness.workloads import Outcome, Workload, assemble

pytestmark = pytest.mark.promise(id="P15")


def world(trial: Trial) -> Mapping[str, Any]:
    """Everything an engine could touch and must leave alone, in values that compare."""
    model = trial.subject.model
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "weights and buffers": {
            name: (
                tensor.dtype,
                tensor.device,
                tuple(tensor.shape),
                tensor.double().sum().item(),
                tensor._version,
            )
            for name, tensor in tensors.items()
        },
        "model config": deepcopy(model.config.to_dict()),
        "generation config": deepcopy(model.generation_config.to_dict()),
        "attention implementation": model.config._attn_implementation,
        "training mode": model.training,
        "forward hooks": sum(len(module._forward_hooks) for module in model.modules()),
        "forward method": model.forward.__func__,
        "torch RNG": torch.random.get_rng_state().tolist(),
        "CUDA RNG": [s.tolist() for s in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
        "Python RNG": random.getstate(),
        "numpy RNG": [str(part) for part in np.random.get_state()],
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "number of threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "SDPA backends": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
    }


def require_same_world(before: Mapping[str, Any], after: Mapping[str, Any], when: str) -> None:
    for name, value in before.items():
        if after[name] != value:
            raise ConformanceFailure(
                Promise.P15, f"the {name} changed {when}", _difference(value, after[name])
            )


def _difference(old: Any, new: Any) -> list[str]:
    if isinstance(old, dict):
        keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted(keys)[:3]]
    return [f"{str(old)[:60]} -> {str(new)[:60]}"]


@pytest.mark.one_model
@given(data=st.data())
def test_serving_leaves_the_world_as_it_was(trial: Trial, data: st.DataObject) -> None:
    """While an engine works it may borrow what it likes; after each call all is back."""
    workload = data.draw(workloads(trial.oracle, trial.capabilities))
    asked = deepcopy(workload.requests)
    before = world(trial)
    with trial.engine(workload.config) as engine:
        outcome = trial.run(workload, engine)
        with trial.reporting(workload):
            require_same_world(before, world(trial), "during generate")
    with trial.reporting(workload):
        require_same_world(before, world(trial), "when the engine was closed")
        if workload.requests != asked:
            raise ConformanceFailure(Promise.P15, "the caller's requests were edited")
        trial.judge(workload.requests, outcome)


@pytest.mark.one_model
@given(data=st.data())
def test_two_engines_live_side_by_side(trial: Trial, data: st.DataObject) -> None:
    """Different limits, the same model and the same ids, calls in turn."""
    first_config, second_config = (
        EngineConfig(max_num_seqs=1),
        EngineConfig(max_num_seqs=3, block_size=4),
    )
    with trial.engine(first_config) as first, trial.engine(second_config) as second:
        for engine, config in ((first, first_config), (second, second_config), (first, first_config)):
            drawn = data.draw(requests(trial.oracle, max_size=4))
            trial.check(Workload(drawn, config), engine)


@pytest.mark.one_model
@pytest.mark.needs("stepping")
def test_two_engines_may_be_stepped_in_turn(trial: Trial) -> None:
    workload = Workload((Request("a", (1, 2, 3), 6), Request("b", (4, 5), 4)))
    other = Workload((Request("a", (9, 8, 7, 6), 5), Request("b", (3,), 6)))
    with trial.engine(workload.config) as first, trial.engine(other.config) as second:
        pairs = ((cast(SteppingEngine, first), workload), (cast(SteppingEngine, second), other))
        events: dict[int, list[Any]] = {0: [], 1: []}
        for engine, mine in pairs:
            for request in mine.requests:
                engine.add(request)
        for _ in range(workload.step_bound):
            for index, (engine, _) in enumerate(pairs):
                events[index] += engine.step()
        for index, (_, mine) in enumerate(pairs):
            with trial.reporting(mine):
                completions = tuple(assemble(r.request_id, events[index]) for r in mine.requests)
                trial.judge(mine.requests, Outcome(completions))
