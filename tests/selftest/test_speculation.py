"""Drafts that are right at a known rate, traces that have drafts, and the drafters of `paged`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from batchproof.api import (
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    RowRecord,
    StepRecord,
)
from batchproof.checks.broken import BrokenPromise, require
from batchproof.checks.happened import has_acceptance, has_rejection
from batchproof.checks.scheduling import limit_findings, scheduling_findings
from batchproof.checks.trace import LateEnds, end_findings, position_findings
from batchproof.decoding.speculation import dialled_draft, disagreeing_tokens, proposed_instead
from batchproof.models.catalogue import load_model
from batchproof.workload.workloads import Workload

CPU = torch.device("cpu")
CONFIG = EngineConfig(max_num_batched_tokens=8, num_speculative_tokens=3, draft_agreement=0.5)
WORKLOAD = Workload((Request("a", (1, 2), 6),), CONFIG)
COMPLETIONS = (Completion("a", (5, 6, 7, 8, 9, 10), FinishReason.LENGTH),)


def step(row: RowRecord, admitted: str = "", finished: str = "") -> StepRecord:
    return StepRecord((row,), (), tuple(admitted), tuple(finished), ())


# Two of three drafts are accepted, then none of one.
HONEST = (
    step(RowRecord("a", 0, 2, is_sampled=True), admitted="a"),
    step(RowRecord("a", 2, 4, is_sampled=True, num_drafted=3, num_accepted=2)),
    step(RowRecord("a", 5, 2, is_sampled=True, num_drafted=1)),
    step(RowRecord("a", 6, 1, is_sampled=True), finished="a"),
)


def check(trace: Sequence[StepRecord]) -> None:
    ends = LateEnds.of(trace, WORKLOAD, COMPLETIONS, delay=0)
    require(position_findings(trace, WORKLOAD))
    require(limit_findings(trace, WORKLOAD, has_token_budget=True))
    require(scheduling_findings(trace, WORKLOAD, can_chunk=True, ends=ends))
    require(end_findings(trace, WORKLOAD, COMPLETIONS, ends))


def test_a_trace_with_drafts_keeps_every_rule() -> None:
    check(HONEST)
    assert has_acceptance(HONEST)
    assert has_rejection(HONEST)


@pytest.mark.parametrize(
    ("number", "row", "says"),
    [
        (1, RowRecord("a", 2, 5, True, 4, 2), "num_drafted is 4 and num_accepted 2"),
        (0, RowRecord("a", 0, 3, False, 1, 0), "at most 0 drafts"),
        (2, RowRecord("a", 6, 2, True, 1, 0), "context_len is 6, but 5 tokens"),
        (1, RowRecord("a", 2, 4, True, 3, 1), "context_len is 5, but 4 tokens"),
    ],
    ids=["beyond the config", "in a chunk", "rejected kept", "lost"],
)
def test_a_wrong_row_with_drafts_is_found(number: int, row: RowRecord, says: str) -> None:
    trace = list(HONEST)
    trace[number] = replace(trace[number], rows=(row,))
    with pytest.raises(BrokenPromise) as caught:
        check(trace)
    assert says in str(caught.value)


def test_a_dialled_draft_disagrees_where_it_should() -> None:
    """Its logits are the model's, but for the rows that changed places."""
    for name in ("gpt2-hash", "llama-hash"):
        model = load_model(name, CPU, torch.float32).model
        draft = dialled_draft(model, 0.75)
        assert draft is dialled_draft(model, 0.75)
        wrong = disagreeing_tokens(model.config.vocab_size, 0.75)
        assert len(wrong) == model.config.vocab_size // 4
        tokens = torch.arange(40)[None] * 7 % 256
        of_model, of_draft = (each(tokens).logits[0] for each in (model, draft))
        said, drafted = of_model.argmax(-1), of_draft.argmax(-1)
        disagrees = torch.isin(said, torch.tensor(wrong))
        assert disagrees.any()
        assert not disagrees.all()
        assert torch.equal(said != drafted, disagrees)
        assert drafted.tolist() == [proposed_instead(token, 256, 0.75) for token in said.tolist()]
        assert torch.equal(of_model.sort().values, of_draft.sort().values)
