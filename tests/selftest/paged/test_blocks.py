"""The pool of blocks with torch's kernels."""

from typing import Any

import numpy as np
import pytest
import torch

from batchproof_paged.attention import AttentionForm
from batchproof_paged.blocks import BlockPool
from batchproof_paged.staging import Reader, Staging
from tests.selftest.paged.rehearsal import Rehearsal, Shape, sequence, tell

CPU = torch.device("cpu")
SINKS = torch.linspace(-2, 3, 14)
FORMS = {
    "plain": AttentionForm(0.4),
    "window": AttentionForm(0.4, window=3),
    "softcap": AttentionForm(0.4, softcap=2.0),
    "sinks": AttentionForm(0.4, sinks=SINKS),
    "all": AttentionForm(0.4, window=6, softcap=5.0, sinks=SINKS),
}
SHAPES = {
    "alone": Shape(num_kv_heads=2, group=1),
    "pairs": Shape(num_kv_heads=2, group=2, qk_dim=20, v_dim=20),
    "sevens": Shape(num_kv_heads=2, group=7, qk_dim=12, v_dim=24),
}


def form_for(name: str, shape: Shape) -> AttentionForm:
    form = FORMS[name]
    if form.sinks is None:
        return form
    return AttentionForm(form.scaling, form.window, form.softcap, form.sinks[: shape.num_heads])


def a_pool(block_size: int = 4, **options: Any) -> BlockPool:
    usual: dict[str, Any] = {"num_blocks": 40, "poison": 1e4, "device": CPU}
    return BlockPool(3, block_size, **(usual | options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_token_sees_its_own_sequence_and_nothing_else(
    form: str, shape: Shape, block_size: int, dtype: torch.dtype
) -> None:
    pool = a_pool(block_size)
    tell(Rehearsal(pool, shape, form_for(form, shape), dtype, block_size))


def test_a_long_row_beside_a_short_one_with_a_window_leaves_no_hole() -> None:
    """Nearly all columns of a short row are hidden, and the first ones of a windowed row."""
    rehearsal = Rehearsal(a_pool(num_blocks=400), Shape(), FORMS["window"], num_blocks=400)
    long, short = sequence("long", 0), sequence("short", 1)
    rehearsal.step((long, 700), (short, 1))
    assert rehearsal.step((long, 1), (short, 1)).isfinite().all()


def test_a_newcomer_in_a_lane_does_not_inherit_the_table_of_the_one_before() -> None:
    """The two tables have first block, last block and length in common, as with a prefix cache."""
    pool = a_pool()
    rehearsal = Rehearsal(pool, Shape(), FORMS["plain"])
    old, new = sequence("old", 1), sequence("new", 1)
    rehearsal.step((old, 9))
    first, middle, last = old.block_table
    new.block_table = [first, rehearsal.free.pop(), last]
    assert new.block_table[1] != middle
    rehearsal.step((new, 9))
    rehearsal.step((new, 1))


def test_tables_and_pool_grow_when_they_have_to() -> None:
    pool = a_pool(num_blocks=None, num_columns=1)
    rehearsal = Rehearsal(pool, Shape(), FORMS["plain"], num_blocks=90)
    tell(rehearsal)
    assert pool.generation > 1
    generation = pool.generation
    rehearsal.step((sequence("again", 0), 5))
    assert pool.generation == generation


def test_layers_may_differ_in_shape_and_form() -> None:
    pool = a_pool()
    shapes = Shape(), SHAPES["sevens"]
    forms = FORMS["plain"], form_for("all", shapes[1])
    layers = [
        Rehearsal(pool, shape, form, layer=layer)
        for layer, (shape, form) in enumerate(zip(shapes, forms, strict=True))
    ]
    a, b = (sequence(name, 0) for name in "ab")
    for query_len in (6, 1, 3, 1):
        for layer, own in zip(layers, (a, b), strict=True):
            layer.step((own, query_len))
    numbers_per_cell = 2 * (8 + 8) + 2 * (12 + 24)
    assert pool.num_bytes == 41 * 4 * numbers_per_cell * 4


def test_arrays_arrive_as_they_were_sent_while_the_next_are_prepared() -> None:
    staging = Staging(CPU)
    arrays = [np.arange(start, start + 2000).reshape(2, -1) for start in range(4)]
    sent = [staging.send(array, np.array([7])) for array in arrays]
    for array, (first, second) in zip(arrays, sent, strict=True):
        assert first.tolist() == array.tolist()
        assert second.tolist() == [7]


def test_tokens_read_later_are_those_of_the_time_of_asking() -> None:
    ids = torch.tensor([3, 4])
    read = Reader(CPU).read_later(ids)
    ids.zero_()
    assert read() == [3, 4]
