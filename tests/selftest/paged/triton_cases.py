"""Triton's kernels against the slow sum: on a GPU, or in Triton's interpreter, which runs on any CPU
and must be chosen before Triton is imported. `test_triton_kernels.py` runs this file either way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from implementations.paged import triton_decode, triton_prefill, triton_tiles
from implementations.paged.attention import AttentionForm
from implementations.paged.blocks import BlockPool
from implementations.paged.kernels import DecodeRows, LayerCache
from tests.selftest.paged.rehearsal import Rehearsal, Shape, tell

# The interpreter's own: it is why it does not work with newer versions of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

IS_INTERPRETED = triton_tiles.INTERPRETED.value
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
SINKS = torch.linspace(-2, 3, 14)
LENGTHS = (5, 35, 1, 16)  # tokens: more than a tile of 16 keys, less, exactly one

# name: shape, block size, number of splits, form
CASES = {
    "one head": (Shape(1, 1, 8, 8), 4, 1, AttentionForm(0.4)),
    "pairs, split": (Shape(2, 2, 64, 64), 16, 3, AttentionForm(0.2)),
    "fours, a block for each token": (Shape(1, 4, 20, 20), 1, 2, AttentionForm(0.3)),
    "values wider than keys": (Shape(2, 2, 20, 40), 4, 4, AttentionForm(0.3)),
    "keys wider than values": (Shape(1, 2, 24, 16), 16, 1, AttentionForm(0.3)),
    "window within a tile": (Shape(1, 2), 4, 1, AttentionForm(0.4, window=5)),
    "window over tiles, split": (Shape(1, 2), 4, 2, AttentionForm(0.4, window=20)),
    "window of one": (Shape(1, 2), 4, 2, AttentionForm(0.4, window=1)),
    "softcap": (Shape(1, 2), 4, 2, AttentionForm(0.9, softcap=2.0)),
    "sinks": (Shape(2, 2), 4, 1, AttentionForm(0.4, sinks=SINKS[:4])),
    "sinks, split": (Shape(1, 7), 4, 3, AttentionForm(0.4, sinks=SINKS[:7])),
    "all": (Shape(2, 7, 20, 24), 4, 2, AttentionForm(0.4, 18, 3.0, SINKS)),
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short sequence needs several."""
    monkeypatch.setattr(triton_tiles, "TILE_BYTES", {2: 1, 4: 1})
    monkeypatch.setattr(triton_prefill, "MAX_QUERIES", {2: 32, 4: 16})


IN_BFLOAT16 = "one head", "pairs, split", "window over tiles, split", "all"


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.float32) for case in CASES] + [(case, torch.bfloat16) for case in IN_BFLOAT16],
)
def test_a_token_sees_its_own_sequence_and_reads_nothing_else(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, block_size, num_splits, form = CASES[case]
    monkeypatch.setattr(triton_decode, "splits_for", lambda *_: num_splits)
    if form.sinks is not None:
        sinks = form.sinks.to(DEVICE)
        form = AttentionForm(form.scaling, form.window, form.softcap, sinks)
    pool = BlockPool(3, block_size, 110, poison=float("nan"), device=DEVICE, kernels="triton")
    rehearsal = Rehearsal(pool, shape, form, dtype, block_size, 110, DEVICE)
    if IS_INTERPRETED:
        rehearsal.rounding *= 2  # it cuts off where hardware rounds to the nearest
    tell(rehearsal, LENGTHS)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("sinks", [None, SINKS[:2]], ids=["plain", "sinks"])
def test_a_row_without_keys_becomes_zeros(num_splits: int, sinks: Tensor | None) -> None:
    cells = torch.full((3, 4, 1, 8), float("nan"), device=DEVICE)
    tables = torch.zeros(2, 4, dtype=torch.int32, device=DEVICE)
    rows = DecodeRows(
        torch.tensor([1], device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE), 4
    )
    form = AttentionForm(1.0, sinks=None if sinks is None else sinks.to(DEVICE))
    query = torch.ones(1, 2, 8, device=DEVICE)
    out = torch.full_like(query, 7.0)
    triton_decode.decode(query, LayerCache(cells, cells), tables, rows, form, out, num_splits)
    assert out.tolist() == torch.zeros_like(out).tolist()


def test_queries_keys_and_values_may_be_views_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model makes them: heads before tokens, or all of them from one product."""
    pool = BlockPool(3, 4, 40, poison=1e4, device=DEVICE, kernels="triton")
    attend = pool.attend

    def attend_views(layer: int, *rows: Any) -> Tensor:
        *packed, form = rows
        together = torch.cat(packed, dim=1).transpose(0, 1).contiguous().transpose(0, 1)
        query, key, value = torch.split(together, [4, 2, 2], dim=1)
        return attend(layer, query, key, value, form)

    monkeypatch.setattr(pool, "attend", attend_views)
    tell(Rehearsal(pool, Shape(2, 2), AttentionForm(0.4), device=DEVICE))


def test_long_rows_are_split_so_that_all_processors_have_work() -> None:
    splits = triton_decode.splits_for
    assert splits(1, 100, torch.device("cpu")) == 2
    assert splits(8, 100, torch.device("cpu")) == 1
    assert splits(1, 3, torch.device("cpu")) == 1
