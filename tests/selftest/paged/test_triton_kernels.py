"""Triton's kernels against the slow sum: on a GPU or, with TRITON_INTERPRET=1, in Triton's
interpreter, which runs on any CPU and needs NumPy below 2.4."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import (
    DecodeRows,
    LayerCache,
    LayerPass,
    PrefillRows,
    StepRows,
    triton_works,
)
from tests.selftest.paged.rehearsal import Rehearsal, Shape, attend_slowly, tell

if not triton_works():
    pytest.skip("Triton is not installed, or has nothing to run on", allow_module_level=True)

from batchproof_paged import triton_decode, triton_prefill, triton_tiles
from batchproof_paged.triton_decode import Splits
from batchproof_paged.triton_tiles import DecodeSweep, PrefillSweep, Sweeps

# The interpreter's own: it is why it does not work with newer versions of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

IS_INTERPRETED = triton_tiles.INTERPRETED.value
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
SINKS = torch.linspace(-2, 3, 14)
LENGTHS = (5, 35, 1, 16)  # tokens: more than a tile of 16 keys, less, exactly one
ONE, TWO = Splits(1), Splits(2, 2)
# name: shape, block size, splits, form
CASES = {
    "one head": (Shape(1, 1, 8, 8), 4, ONE, AttentionForm(0.4)),
    "pairs, split": (Shape(2, 2, 64, 64), 16, Splits(3), AttentionForm(0.2)),
    "fours, a block for each token": (Shape(1, 4, 20, 20), 1, TWO, AttentionForm(0.3)),
    "values wider than keys": (Shape(2, 2, 20, 40), 4, Splits(4, 2), AttentionForm(0.3)),
    "keys wider than values": (Shape(1, 2, 24, 16), 16, ONE, AttentionForm(0.3)),
    "window within a tile": (Shape(1, 2), 4, ONE, AttentionForm(0.4, window=5)),
    "window over tiles, split": (Shape(1, 2), 4, Splits(2), AttentionForm(0.4, window=20)),
    "window of one": (Shape(1, 2), 4, TWO, AttentionForm(0.4, window=1)),
    "softcap, a block for two tiles": (Shape(1, 2), 32, Splits(2), AttentionForm(0.9, softcap=2.0)),
    "sinks, a block for one and a half": (Shape(2, 2), 24, ONE, AttentionForm(0.4, sinks=SINKS[:4])),
    "sinks, split": (Shape(1, 7), 4, Splits(3), AttentionForm(0.4, sinks=SINKS[:7])),
    "all": (Shape(2, 7, 20, 24), 4, Splits(2), AttentionForm(0.4, 18, 3.0, SINKS)),
}


NUM_MORE = 2  # of padding: decode rows, prefill rows, and prompt tokens


class CapturedPool(BlockPool):
    """Passes rows as a captured step does: padded, and unknown to the host."""

    def begin(self, batch: RaggedBatch) -> None:
        super().begin(batch)
        decodes, rows = self._rows.decodes, self._rows.prefills
        none = torch.zeros(0, dtype=torch.int64, device=self._tables.device)
        lanes, seq_lens = (decodes.lanes, decodes.seq_lens) if decodes is not None else (none, none)
        self._num_decodes, width, trash = len(lanes), self._tables.shape[1], self.trash_lane
        decodes = DecodeRows(padded_with(trash, lanes), padded_with(0, seq_lens), width)
        if rows is not None:
            starts = padded_with(int(rows.starts[-1]), rows.starts) + NUM_MORE
            given = padded_with(trash, rows.lanes), padded_with(0, rows.context_lens), starts
            rows = PrefillRows(*given, width, padded_with(0, rows.slots), None)
        self._rows = StepRows(decodes, rows)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        num, has_prompts = self._num_decodes, self._rows.prefills is not None
        query, key, value = (
            torch.cat([padded_with(3, each[:num]), *([padded_with(3, each[num:])] * has_prompts)])
            for each in (query, key, value)
        )
        out = super().attend(layer, query, key, value, form)
        assert out[num : num + NUM_MORE].isfinite().all(), "a padding row's result is not finite"
        prompts = out[num + NUM_MORE : -NUM_MORE] if has_prompts else out[:0]
        return torch.cat([out[:num], prompts])


def padded_with(number: int, rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_full((NUM_MORE, *rows.shape[1:]), number)])


# Of real models and unusual ones, read as on a GPU: in tiles of the size that is chosen there.
WHOLE_TILES = {
    "llama-8b": (Shape(8, 4, 128, 128), 16, AttentionForm(0.1)),
    "gemma": (Shape(4, 2, 256, 256), 16, AttentionForm(0.1, window=33, softcap=50.0)),
    "keys of 192": (Shape(2, 1, 192, 128), 16, AttentionForm(0.1)),
    "heads of 80": (Shape(3, 12, 80, 80), 48, AttentionForm(0.1)),
    "group of 48, blocks of 256": (Shape(1, 48, 96, 96), 256, AttentionForm(0.1)),
    "blocks of 7": (Shape(8, 4, 40, 48), 7, AttentionForm(0.1, window=8)),
}


def on_device(form: AttentionForm) -> AttentionForm:
    return form if form.sinks is None else replace(form, sinks=form.sinks.to(DEVICE))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes splits small, so that a short sequence needs several."""
    small = Sweeps(DecodeSweep(tile_bytes=1), PrefillSweep(tile_bytes=1, max_queries=16))
    for module in triton_decode, triton_prefill:
        monkeypatch.setattr(module, "sweeps_for", lambda _: small)


IN_BFLOAT16 = "one head", "pairs, split", "window over tiles, split", "all"


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.float32) for case in CASES]
    + [(case, torch.bfloat16) for case in IN_BFLOAT16]
    + [("all", torch.float64)],
)
def test_a_token_sees_its_own_sequence_and_reads_nothing_else(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, block_size, splits, form = CASES[case]
    monkeypatch.setattr(triton_decode, "splits_for", lambda *_: splits)
    pool = BlockPool(3, block_size, 110, poison=float("nan"), device=DEVICE, kernels="triton")
    rehearsal = Rehearsal(pool, shape, on_device(form), dtype, block_size, 110, device=DEVICE)
    if IS_INTERPRETED:
        rehearsal.rounding *= 2  # it cuts off where hardware rounds to the nearest
    tell(rehearsal, LENGTHS)


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter takes minutes for such tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "block_size", "form"), WHOLE_TILES.values(), ids=WHOLE_TILES)
def test_tiles_of_the_chosen_size_are_read_alike(
    shape: Shape, block_size: int, form: AttentionForm, dtype: torch.dtype
) -> None:
    pool = BlockPool(3, block_size, 110, poison=float("nan"), device=DEVICE, kernels="triton")
    tell(Rehearsal(pool, shape, form, dtype, block_size, 110, device=DEVICE), (5, 130, 1, 65))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("case", ["all", "pairs, split", "window of one"])
def test_rows_of_a_captured_step_that_the_host_does_not_know_are_served_as_well(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, block_size, splits, form = CASES[case]
    monkeypatch.setattr(triton_decode, "splits_for", lambda *_: splits)
    pool = CapturedPool(3, block_size, 110, poison=float("nan"), device=DEVICE, kernels="triton")
    kernels = Rehearsal(pool, shape, on_device(form), torch.float32, block_size, 110, device=DEVICE)
    tell(kernels, LENGTHS)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("splits", [ONE, Splits(2), Splits(3)], ids=str)
@pytest.mark.parametrize("sinks", [None, SINKS[:2]], ids=["plain", "sinks"])
@pytest.mark.parametrize("window", [None, 1, 9])
def test_a_decode_writes_its_own_cell_and_a_padding_row_nothing(
    splits: Splits, sinks: Tensor | None, window: int | None
) -> None:
    """A row with a key more than its shares of whole tiles, one with nothing before it, one at the last
    cell of a block, and padding."""
    generator = torch.Generator().manual_seed(1)
    tables = torch.randperm(44, generator=generator).view(4, 11).int()
    nothing = torch.full((45, 4, 1, 8), float("nan"))
    before, after = ((nothing.clone(), nothing.clone()) for _ in range(2))
    form = AttentionForm(1.0, window, sinks=sinks)
    query = torch.randn(4, 2, 8, generator=generator)
    fed = [torch.zeros(4, 1, 8), torch.zeros(4, 1, 8)]
    expected = torch.zeros(4, 2, 8, dtype=torch.float64)
    seq_lens = 34, 1, 0, 8
    for row, seq_len in enumerate(seq_lens):
        history = [torch.randn(seq_len, 1, 8, generator=generator) for _ in range(2)]
        places = torch.arange(seq_len)
        cells = tables[row].long()[places // 4], places % 4
        for numbers, old, new, own in zip(history, before, after, fed, strict=True):
            new[cells] = numbers
            old[cells[0][:-1], cells[1][:-1]] = numbers[:-1]
            out_of_sight = places < seq_len - (window or seq_len)
            for each in (old, new):
                each[cells[0][out_of_sight], cells[1][out_of_sight]] = float("nan")
            own[row] = numbers[-1] if seq_len else 9.0
        if seq_len:
            expected[row] = attend_slowly(query[row : row + 1], history[0], history[1], form)[0]
    cache = LayerCache(before[0].to(DEVICE), before[1].to(DEVICE))
    rows = DecodeRows(torch.arange(4, device=DEVICE), torch.tensor(seq_lens, device=DEVICE), 11)
    out = torch.full((4, 2, 8), 7.0, device=DEVICE)
    asked, keys, values = (each.to(DEVICE) for each in (query, *fed))
    given = LayerPass(asked, keys, values, cache, tables.to(DEVICE), on_device(form), out)
    triton_decode.decode(given, rows, splits)
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
