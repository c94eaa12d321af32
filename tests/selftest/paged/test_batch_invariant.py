"""`paged?batch_invariant=true`: no row's bits depend on the other rows, and what would break that is
refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from batchproof.api import EngineConfig
from batchproof.errors import ConfigError, UnsupportedModelError
from batchproof.invariance.measure import declared_grades, require_control, require_grade
from batchproof.models.catalogue import load_model
from batchproof.requirements.promises import Promise
from batchproof.run.devices import num_threads
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial
from batchproof_paged.invariant import RowsAlone
from tests.selftest.conftest import LaboratoryFor

CPU = torch.device("cpu")
NAME = "paged?batch_invariant=true"
OFFLOADING = f"{NAME}&offload=16"


def test_it_reaches_every_grade_that_it_declares(laboratory_for: LaboratoryFor) -> None:
    lab = laboratory_for(30.0)
    trial = Trial(lab, resolve_engine(OFFLOADING), lab.oracle("gpt2-random"), Promise.P20)
    with num_threads(1):
        require_control(trial)
        declared = declared_grades(trial)
        for axis, grade in declared.items():
            require_grade(trial, axis, grade)
    assert len(declared) == 13
    assert trial.ledger.num_requests == 1 + 2 * len(declared)
    # All but those of `restart` and `interruption`, which are so by construction.
    assert [*trial.has_happened.values()] == [True] * 11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 48), (37, 51)])
def test_a_row_has_the_same_bits_among_any_number_of_others(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, rows = torch.randn(shape).to(dtype), torch.randn(40, shape[1]).to(dtype)
    bias = torch.randn(shape[0]).to(dtype)
    with RowsAlone():
        alone = [linear(row.clone()[None, None], weight, bias)[0, 0] for row in rows]
        for num_rows in (2, 3, 15, 16, 17, 40):
            together = linear(rows[None, :num_rows], weight, bias)[0]
            assert torch.equal(together, torch.stack(alone[:num_rows]))


def test_other_sums_are_refused() -> None:
    layer, rows = nn.Linear(4, 4), torch.ones(2, 4)
    with RowsAlone(), torch.inference_mode():
        layer(rows)
        rows[:, :1] @ rows[:1]  # one term: nothing is summed
        with pytest.raises(UnsupportedModelError, match="it computes matmul outside its linear layers"):
            rows @ layer.weight
        with pytest.raises(UnsupportedModelError, match="it computes addmm"):
            torch.addmm(layer.bias, rows, layer.weight, beta=2)


@pytest.mark.parametrize("option", ["native=false", "overlap=true"])
def test_what_would_take_other_kernels_is_refused(option: str) -> None:
    model = load_model("gpt2-random", CPU, torch.float32).model
    with pytest.raises(ConfigError, match="batch_invariant=true needs"):
        resolve_engine(f"{NAME}&{option}").factory(model, EngineConfig())


def test_a_model_that_cannot_be_packed_is_refused() -> None:
    model = load_model("bamba-random", CPU, torch.float32).model
    with pytest.raises(UnsupportedModelError, match="batch_invariant=true needs feed=packed"):
        resolve_engine(NAME).factory(model, EngineConfig())
