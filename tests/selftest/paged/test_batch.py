"""The batch of a step, made from the one before, against one made from nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch

from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.scheduler import SchedulerOutput
from batchproof_paged.sequence import Sequence
from tests.selftest.paged.policy_model import PolicyModel, play
from tests.selftest.paged.rehearsal import sequence


def assert_same(made: RaggedBatch, wanted: RaggedBatch) -> None:
    """But for how they were made."""
    for field in fields(RaggedBatch):
        got, should_be = getattr(made, field.name), getattr(wanted, field.name)
        if isinstance(should_be, np.ndarray):
            assert (got.dtype, got.tolist()) == (should_be.dtype, should_be.tolist()), field.name
        elif field.name != "is_advanced":
            assert got == should_be, field.name


@dataclass(eq=False)
class PackedModel(PolicyModel):
    """Packs every plan as the engine does, and sends a pool the tables."""

    num_advanced: int = 0
    num_opened: int = 0  # blocks, by steps that advance

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch: RaggedBatch | None = None
        size = self.config.block_size
        self.pool = BlockPool(self.config.max_num_seqs, size, device=torch.device("cpu"))

    def _finish_step(self, plan: SchedulerOutput) -> None:
        if plan.scheduled:
            self.batch = RaggedBatch.of(plan.scheduled, self.batch)
            self._check_packed(self.batch, RaggedBatch.of(plan.scheduled))
        super()._finish_step(plan)

    def _check_packed(self, batch: RaggedBatch, fresh: RaggedBatch) -> None:
        assert_same(batch, fresh)
        self.pool.update_tables(batch)
        for each in batch.scheduled.sequences:
            known = self.pool._tables[each.lane, : len(each.block_table)].tolist()
            assert known == [block + 1 for block in each.block_table], each.request_id
        self.num_advanced += batch.is_advanced
        if batch.is_advanced:
            self.num_opened += int((batch.context_lens % self.config.block_size == 0).sum())


def test_a_step_advanced_is_the_step_made_from_nothing() -> None:
    played = [play(seed, PackedModel) for seed in range(100)]
    # What it is about has happened, and often, and so has the other case.
    num_advanced = sum(each.num_advanced for each in played)
    assert num_advanced > 500
    assert sum(each.num_schedules for each in played) - num_advanced > 500
    assert sum(each.num_opened for each in played) > 200
    assert sum(each.num_preemptions for each in played) > 100


def decodes(*sequences: Sequence, context_len: int) -> Rows:
    return Rows.decodes(list(sequences), [context_len] * len(sequences))


A, B, C = (sequence(name, lane) for lane, name in enumerate("abc"))
A_CHUNK = Rows.of([Scheduled(A, 3, 1, False), Scheduled(B, 3, 1, True)])
A_PROMPT = Rows.of([Scheduled(A, 1, 3, True), Scheduled(B, 3, 1, True)])


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(decodes(A, B, C, context_len=3), id="one has left"),
        pytest.param(decodes(A, context_len=3), id="one has come"),
        pytest.param(decodes(A, C, context_len=3), id="one has taken the place of another"),
        pytest.param(decodes(B, A, context_len=3), id="two have changed places"),
        pytest.param(decodes(A, B, context_len=4), id="the step before was not booked"),
        pytest.param(decodes(A, B, context_len=2), id="a step was missed"),
        pytest.param(A_CHUNK, id="one was not sampled"),
        pytest.param(A_PROMPT, id="one was fed a prompt"),
    ],
)
def test_what_does_not_advance_is_made_from_nothing(before: Rows) -> None:
    now = decodes(A, B, context_len=4)
    assert now.advance(decodes(A, B, context_len=3))
    assert not now.advance(before)


def test_a_prompt_behind_decodes_does_not_advance_them() -> None:
    now = Rows.of([Scheduled(A, 4, 2, True), Scheduled(B, 4, 1, True)])
    assert not now.advance(decodes(A, B, context_len=3))


def test_rows_are_a_sequence_of_what_was_scheduled() -> None:
    a, b, c = (sequence(name, lane) for lane, name in enumerate("abc"))
    for each in (a, b, c):
        each.token_ids += range(2, 9)
    scheduled = [Scheduled(a, 0, 5, False), Scheduled(b, 7, 1, True), Scheduled(c, 5, 3, True)]
    rows = Rows.of(scheduled)
    assert list(rows) == scheduled
    assert list(rows[1:]) == scheduled[1:]
    assert rows[-1] == scheduled[-1]
    assert rows.seq_lens == [5, 8, 8]
    assert not Rows.of([])
    batch = RaggedBatch.of(rows)
    assert batch.scheduled.sequences == [b, a, c], "decodes come first"
    assert batch.token_ids.tolist() == [8, 1, 2, 3, 4, 5, 6, 7, 8]
    assert batch.sampled.sequences == [b, c]
