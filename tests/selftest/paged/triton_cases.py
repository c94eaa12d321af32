"""Triton's kernels against the slow sum: on a GPU, or in Triton's interpreter, which runs on any CPU
and must be chosen before Triton is imported. `test_triton_kernels.py` runs this file either way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from batchproof_engines.paged import (
    triton_decode,
    triton_prefill,
    triton_splits,
    triton_tiles,
)
from batchproof_engines.paged.attention import AttentionForm
from batchproof_engines.paged.blocks import BlockPool
from batchproof_engines.paged.kernels import DecodeRows, LayerCache, LayerPass
from batchproof_engines.paged.triton_config import DecodeSweep, PrefillSweep, Sweeps
from tests.selftest.paged.captured import CapturedPool
from tests.selftest.paged.rehearsal import Rehearsal, Shape, attend_slowly, tell

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


def on_device(form: AttentionForm) -> AttentionForm:
    return form if form.sinks is None else replace(form, sinks=form.sinks.to(DEVICE))


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes splits small, so that a short sequence needs several."""
    small = Sweeps(DecodeSweep(tile_bytes=1), PrefillSweep(tile_bytes=1, max_queries=16))
    for module in triton_decode, triton_prefill:
        monkeypatch.setattr(module, "sweeps_for", lambda _: small)


IN_BFLOAT16 = "one head", "pairs, split", "window over tiles, split", "all"


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.float32) for case in CASES]
    + [(case, torch.bfloat16) for case in IN_BFLOAT16]
    + [("all", torch.float64)],
)
def test_a_token_sees_its_own_sequence_and_reads_nothing_else(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, block_size, num_splits, form = CASES[case]
    monkeypatch.setattr(triton_decode, "splits_for", lambda *_: num_splits)
    pool = BlockPool(3, block_size, 110, poison=float("nan"), device=DEVICE, kernels="triton")
    rehearsal = Rehearsal(pool, shape, on_device(form), dtype, block_size, 110, DEVICE)
    if IS_INTERPRETED:
        rehearsal.rounding *= 2  # it cuts off where hardware rounds to the nearest
    tell(rehearsal, LENGTHS)


@pytest.mark.parametrize("case", ["all", "pairs, split", "window of one"])
def test_rows_of_a_captured_step_that_the_host_does_not_know_are_served_as_well(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, block_size, num_splits, form = CASES[case]
    monkeypatch.setattr(triton_decode, "splits_for", lambda *_: num_splits)
    pool = CapturedPool(3, block_size, 110, poison=float("nan"), device=DEVICE, kernels="triton")
    tell(Rehearsal(pool, shape, on_device(form), torch.float32, block_size, 110, DEVICE), LENGTHS)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("sinks", [None, SINKS[:2]], ids=["plain", "sinks"])
@pytest.mark.parametrize("window", [None, 1, 9])
def test_a_decode_writes_its_own_cell_and_a_padding_row_nothing(
    num_splits: int, sinks: Tensor | None, window: int | None
) -> None:
    """A row over a block's end, one with nothing before it, one at a block's last cell, and padding."""
    generator = torch.Generator().manual_seed(1)
    tables = torch.randperm(44, generator=generator).view(4, 11).int()
    nothing = torch.full((45, 4, 1, 8), float("nan"))
    before, after = ((nothing.clone(), nothing.clone()) for _ in range(2))
    form = AttentionForm(1.0, window, sinks=sinks)
    query = torch.randn(4, 2, 8, generator=generator)
    fed = [torch.zeros(4, 1, 8), torch.zeros(4, 1, 8)]
    expected = torch.zeros(4, 2, 8, dtype=torch.float64)
    seq_lens = 41, 1, 0, 8
    for row, seq_len in enumerate(seq_lens):
        history = [torch.randn(seq_len, 1, 8, generator=generator) for _ in range(2)]
        places = torch.arange(seq_len)
        cells = tables[row].long()[places // 4], places % 4
        for numbers, old, new, own in zip(history, before, after, fed, strict=True):
            new[cells] = numbers
            old[cells[0][:-1], cells[1][:-1]] = numbers[:-1]
            own[row] = numbers[-1] if seq_len else 9.0
        if seq_len:
            expected[row] = attend_slowly(query[row : row + 1], history[0], history[1], form)[0]
    cache = LayerCache(before[0].to(DEVICE), before[1].to(DEVICE))
    rows = DecodeRows(torch.arange(4, device=DEVICE), torch.tensor(seq_lens, device=DEVICE), 11)
    out = torch.full((4, 2, 8), 7.0, device=DEVICE)
    inputs = (each.to(DEVICE) for each in (query, *fed))
    given = LayerPass(*inputs, cache, tables.to(DEVICE), on_device(form), out)
    triton_decode.decode(given, rows, num_splits)
    for stored, right in zip((cache.keys, cache.values), after, strict=True):
        assert torch.equal(stored.cpu().view(torch.int32), right.view(torch.int32))
    assert float((out.cpu() - expected).abs().max()) < 1e-5


def test_queries_keys_and_values_may_be_views_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides as a model makes them: heads before tokens, or all three from one product."""
    pool = BlockPool(3, 4, 40, poison=1e4, device=DEVICE, kernels="triton")
    attend = pool.attend

    def attend_views(layer: int, *rows: Any) -> Tensor:
        *packed, form = rows
        together = torch.cat(packed, dim=1).transpose(0, 1).contiguous().transpose(0, 1)
        query, key, value = torch.split(together, [4, 2, 2], dim=1)
        return attend(layer, query, key, value, form)

    monkeypatch.setattr(pool, "attend", attend_views)
    tell(Rehearsal(pool, Shape(2, 2), AttentionForm(0.4), device=DEVICE))


def test_splits_fill_whole_waves() -> None:
    """24 rows of 8 key heads on 132 processors used to make 192 programs, a wave and a half."""
    slots = 4 * 132
    assert triton_splits.splits_for(1, 100, 1) == 1
    assert triton_splits.splits_for(8, 64, slots) == 32
    assert triton_splits.splits_for(8, 4000, slots) == 64
    for num_rows in (3, 24, 40, 66, 100, 256):
        num_programs = 8 * num_rows * triton_splits.splits_for(8 * num_rows, 64, slots)
        waves = num_programs / slots
        assert waves / -(-waves // 1) > 0.7, f"{num_rows} rows: {waves:.2f} waves"
