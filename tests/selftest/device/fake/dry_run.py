"""Runs the `paged` engine for CUDA on a machine without it: build, steps with prompts, decode steps."""

from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PreTrainedModel

import batchproof_paged as paged
from batchproof.api import EngineConfig, Request
from batchproof.models.shapes import SHAPES
from batchproof_paged.blocks import BlockPool
from batchproof_paged.feeding import Found
from batchproof_paged.options import PagedOptions
from tests.selftest.device.fake.kernels import kernels
from tests.selftest.device.fake.ledger import Ledger, Report
from tests.selftest.device.fake.runtime import runtime
from tests.selftest.device.fake.watch import Watch


class FakeDevice(FakeTensorMode):
    """A fake mode that creates no tensor on the device at its start: `torch.cuda` only claims there
    is one."""

    avoid_device_init = True


def dry_run(
    shape: str,
    backend: str,
    num_layers: int | None = None,
    num_seqs: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    options: dict[str, Any] | None = None,
    device: int = 0,
    budget: int = 512,
    pool: type[BlockPool] = BlockPool,
) -> Report:
    """Runs a small workload and reports what a GPU would reject or wait for.

    `num_layers` None means all. `device` is one of two, the first of which is current; `budget` is the
    number of tokens in a step. `options` are those of `paged`; there is no trial batch, whose answers
    would be meaningless. An error ends the run and is reported as a problem.
    """
    kind = SHAPES[shape]
    name = "n_layer" if kind.kind == "GPT2Config" else "num_hidden_layers"
    model_config = kind.config(**({} if num_layers is None else {name: num_layers}))
    config = EngineConfig(
        max_num_seqs=num_seqs, max_num_batched_tokens=budget, max_model_len=2 * budget
    )
    ledger = Ledger(device=device)
    fake = FakeDevice(allow_non_fake_inputs=True)
    with runtime(ledger), kernels(ledger), fake, Watch(ledger):
        with torch.device("cuda", device):
            model = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
        model = model.eval().requires_grad_(False)
        ledger.begin()  # making the model is not part of the build
        try:
            with mock.patch.multiple(paged, options_for=_as_asked, BlockPool=pool):
                engine = paged.paged(model, config, backend=backend, **(options or {}))
            ledger.end_step("build")
            for turn in range(2):  # the second turn uses what the first has captured
                _serve(engine, ledger, turn, config)
        except Exception as error:
            ledger.problem(f"the run ended: {type(error).__name__}: {str(error).splitlines()[0]}")
            ledger.end_step("cut short")
    return Report(shape, backend, model_config.num_hidden_layers, ledger.steps, ledger.found)


def _as_asked(model: PreTrainedModel, asked: PagedOptions, _build: object) -> Found:
    return Found(asked.resolved(model.device, model.dtype))


def _serve(engine: Any, ledger: Ledger, turn: int, config: EngineConfig) -> None:
    """Serves more requests than there are slots, so that prompts share steps with decodes."""
    shortest = min(29, config.max_num_batched_tokens // 2)
    for index in range(3 * config.max_num_seqs // 2):
        prompt = tuple(range(shortest + shortest // 4 * index))
        engine.add(Request(f"r{index} of {turn}", prompt, max_new_tokens=6 + 3 * (index % 3)))
    while engine.has_unfinished:
        num_before = len(engine.trace)
        engine.step()
        if len(engine.trace) > num_before:
            rows = engine.trace[-1].rows
            ledger.end_step("prompt" if any(row.query_len > 1 for row in rows) else "decode")
