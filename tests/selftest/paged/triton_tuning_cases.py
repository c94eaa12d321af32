"""The choice between ways to iterate over keys, with a fake clock, in Triton's interpreter or on a
GPU. `test_triton_kernels.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

from batchproof_paged import triton_config, triton_tuning
from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import LayerCache
from batchproof_paged.triton_config import DecodeSweep, PrefillSweep, Sweeps
from batchproof_paged.triton_tuning import Launch

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
DEVICE = torch.device("cpu" if triton_config.is_interpreted() else "cuda")
FASTEST = Sweeps(DecodeSweep(num_stages=3), PrefillSweep(max_queries=64))


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_config, "_TUNED", {})


def a_layer(dtype: torch.dtype = torch.bfloat16, dim: int = 8) -> LayerCache:
    cells = torch.randn(9, 4, 1, dim, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    return LayerCache(cells, cells.clone())


def test_the_fastest_way_is_kept_for_layers_of_the_kind_and_the_pool_is_as_before() -> None:
    layer = a_layer()
    before = layer.keys.clone(), layer.values.clone()
    tried: list[Sweeps] = []

    def time_ms(launch: Launch) -> float:
        launch()
        sweeps = triton_config.sweeps_for(layer)
        tried.append(sweeps)
        return 2.0 - (sweeps.decode == FASTEST.decode) - 0.5 * (sweeps.prefill == FASTEST.prefill)

    assert triton_tuning.tuned(layer, 2, AttentionForm(1.0), 2, 9, time_ms) == FASTEST
    assert len(set(tried)) == len(triton_tuning.DECODES) + len(triton_tuning.PREFILLS) - 1
    assert torch.equal(layer.keys, before[0])
    assert torch.equal(layer.values, before[1])
    assert triton_config.sweeps_for(a_layer()) == FASTEST
    assert triton_config.sweeps_for(a_layer(dim=16)) == Sweeps()


def test_a_way_that_the_device_has_no_room_for_is_passed_over() -> None:
    def time_ms(launch: Launch) -> float:
        if launch is slow:
            return 2.0
        raise OutOfResources(300_000, 232_448, "shared memory")

    def slow() -> None: ...

    def too_large() -> None: ...

    assert triton_tuning.fastest([("large", too_large), ("slow", slow)], time_ms) == "slow"


def test_a_trial_that_fails_leaves_the_constants_in_place() -> None:
    def time_ms(launch: Launch) -> float:
        launch()
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="gone"):
        triton_tuning.tuned(a_layer(), 2, AttentionForm(1.0), 2, 9, time_ms)
    assert triton_config.sweeps_for(a_layer()) == Sweeps()
