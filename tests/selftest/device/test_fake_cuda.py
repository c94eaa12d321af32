"""The `paged` engine for CUDA on a machine without it: operations that a GPU rejects or waits for.

Each run is in a process of its own: it makes torch believe in a GPU, which must not affect other tests.
"""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import StepRows
from batchproof_paged.native_build import compiler
from tests.selftest.device.fake.dry_run import dry_run
from tests.selftest.device.fake.ledger import Report, problem_lines

pytestmark = [
    pytest.mark.skipif(not compiler(), reason="no C++ compiler"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here, and is what counts"),
]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
# Streams, events and kernels belong to the current device, the first, which need not be the model's.
RUNS = [
    ("blocks", "qwen3-0.6b", 0),
    ("blocks", "gpt2", 1),
    *(
        pytest.param("triton", shape, device, marks=needs_triton)
        for shape, device in (("llama-1b", 0), ("llama-8b", 0), ("qwen3-0.6b", 0), ("gpt2", 1))
    ),
]
SMALL = (1, 2)  # layers, slots: few passes, and all that there is to meet
SMALLEST = (1, 1)  # half as many captures: a fault in each of them shows in the first
# Compiling takes seconds, and so does each size of a step.
QUICK = {"options": {"compile": False}, "budget": 16}


@pytest.mark.parametrize(("backend", "shape", "device"), RUNS)
def test_the_engine_does_nothing_that_a_gpu_refuses_or_waits_for(
    elsewhere: ProcessPoolExecutor, backend: str, shape: str, device: int
) -> None:
    report = elsewhere.submit(dry_run, shape, backend, *SMALL, **QUICK, device=device).result()
    assert problem_lines(report) == []
    decode = report.usual("decode", has_graph=True)
    assert decode is not None, "no decode step was replayed"
    assert decode.num_replayed >= 20, "a step needs more kernels than that"


@needs_triton
def test_a_compiled_layer_launches_less_and_nothing_is_compiled_in_a_capture(
    elsewhere: ProcessPoolExecutor,
) -> None:
    plain, compiled = (
        elsewhere.submit(dry_run, "qwen3-0.6b", "triton", *SMALL, options={"compile": each}).result()
        for each in (False, True)
    )
    assert problem_lines(compiled) == []
    assert any(name.startswith("inductor:") for name in replayed(compiled))
    assert sum(replayed(compiled).values()) < sum(replayed(plain).values())


class WaitsInACapture(BlockPool):
    """Reads a number from the device, omits the device of an index, and lets each replay copy the
    host's numbers, from memory that is reused by then."""

    def attend(self, layer: int, query: Tensor, *rest: Any) -> Tensor:
        query[0, 0, 0].item()
        query[torch.arange(len(query))]
        torch.zeros(3).pin_memory().to(query.device, non_blocking=True)
        return super().attend(layer, query, *rest)


class MixesDevices(BlockPool):
    """Omits the device of a summand."""

    def attend(self, layer: int, query: Tensor, *rest: Any) -> Tensor:
        return super().attend(layer, query + torch.zeros(len(query), 1, 1), *rest)


class DropsWhatAGraphReads(BlockPool):
    """Makes a summand for each step, in place of that which the captured step read."""

    def begin_static(self, rows: StepRows) -> None:
        super().begin_static(rows)
        self._zero = self._tables.new_zeros(1)

    def attend(self, layer: int, query: Tensor, *rest: Any) -> Tensor:
        return super().attend(layer, query + self._zero, *rest)


@pytest.mark.parametrize(
    ("pool", "problems"),
    [
        (
            WaitsInACapture,
            (
                "in a capture: _local_scalar_dense waits for the device",
                "in a capture: index of a tensor on CUDA with an index on the CPU",
                "in a capture: a copy to the device",
            ),
        ),
        (MixesDevices, ("add: tensors on the CPU and on CUDA",)),  # the end of a run
        (DropsWhatAGraphReads, ("in a capture: add touches a tensor that is freed by the replay",)),
    ],
)
def test_planted_faults_are_reported(
    elsewhere: ProcessPoolExecutor, pool: type[BlockPool], problems: tuple[str, ...]
) -> None:
    report = elsewhere.submit(dry_run, "gpt2", "blocks", *SMALLEST, **QUICK, pool=pool).result()
    lines = problem_lines(report)
    assert [each for each in problems if not any(each in line for line in lines)] == [], lines


def replayed(report: Report) -> dict[str, int]:
    step = report.usual("decode", has_graph=True)
    assert step is not None, "no decode step was replayed"
    return dict(step.replayed)
