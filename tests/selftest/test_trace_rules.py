"""Each rule about traces, with a trace that keeps it and one that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.api import Completion, EngineConfig, FinishReason, Request, RowRecord, StepRecord
from harness.happened import has_chunk, has_mixed_step, has_preemption, has_slot_reuse
from harness.masks import brute_force_mask, differences
from harness.promises import Promise
from harness.trace import (
    check_accounting,
    check_ends,
    check_limits,
    check_positions,
    check_scheduling,
)
from harness.verdict import ConformanceFailure
from harness.workloads import Workload

# a: 3 prompt tokens, cap 2; b: 2 and 1; c: 2 and 2. Two slots, blocks of two tokens, pool of eight.
REQUESTS = (Request("a", (1, 2, 3), 2), Request("b", (4, 5), 1), Request("c", (6, 7), 2))
CONFIG = EngineConfig(max_num_seqs=2, max_num_batched_tokens=6, block_size=2, num_blocks=8)
WORKLOAD = Workload(REQUESTS, CONFIG)

Rows = Sequence[tuple[str, int, int] | tuple[str, int, int, bool]]


def step(
    rows: Rows,
    waiting: str = "",
    admitted: str = "",
    finished: str = "",
    preempted: str = "",
    free: int = 8,
) -> StepRecord:
    records = tuple(RowRecord(r[0], r[1], r[2], r[3] if len(r) == 4 else True) for r in rows)
    return StepRecord(
        records, tuple(waiting), tuple(admitted), tuple(finished), tuple(preempted), free, 8
    )


def honest() -> list[StepRecord]:
    return [
        step([("a", 0, 3), ("b", 0, 2)], "c", "ab", "b", free=6),
        step([("a", 3, 1), ("c", 0, 2)], "", "c", "a", free=7),
        step([("c", 2, 1)], "", "", "c", free=8),
    ]


COMPLETIONS = tuple(
    Completion(request_id, (0,) * length, FinishReason.LENGTH)
    for request_id, length in (("a", 2), ("b", 1), ("c", 2))
)


def check_all(trace: Sequence[StepRecord]) -> None:
    check_positions(trace, WORKLOAD)
    check_limits(trace, WORKLOAD, has_token_budget=True)
    check_scheduling(trace, WORKLOAD, can_chunk=True)
    check_accounting(trace, WORKLOAD)
    check_ends(trace, WORKLOAD, COMPLETIONS)


def test_an_honest_trace_keeps_every_rule() -> None:
    check_all(honest())


def replaced(index: int, record: StepRecord) -> list[StepRecord]:
    trace = honest()
    trace[index] = record
    return trace


BROKEN: dict[str, tuple[Promise, Callable[[], list[StepRecord]], str]] = {
    "a decode position skips one": (
        Promise.P7,
        lambda: replaced(1, step([("a", 4, 1), ("c", 0, 2)], "", "c", "a", free=7)),
        "context_len is 4, but 3 tokens",
    ),
    "the last prompt token is fed twice": (
        Promise.P7,
        lambda: replaced(0, step([("a", 0, 4), ("b", 0, 2)], "c", "ab", "b", free=6)),
        "query_len is 4, but 3 tokens were due",
    ),
    "a chunk is sampled": (
        Promise.P7,
        lambda: replaced(0, step([("a", 0, 2), ("b", 0, 2)], "c", "ab", "b", free=6)),
        "is_sampled is True",
    ),
    "a stranger is served": (
        Promise.P7,
        lambda: replaced(0, step([("z", 0, 2)], "abc", "z")),
        "the trace names 'z', but nobody asked for it",
    ),
    "three rows in two slots": (
        Promise.P9,
        lambda: replaced(0, step([("a", 0, 3), ("b", 0, 2), ("c", 0, 1, False)], "", "abc")),
        "3 rows, but max_num_seqs is 2",
    ),
    "seven tokens in a budget of six": (
        Promise.P9,
        lambda: replaced(2, step([("c", 2, 7)])),
        "7 tokens were fed",
    ),
    "a slot stays empty while somebody waits": (
        Promise.P9,
        lambda: replaced(1, step([("a", 3, 1)], "c", "", "a", free=8)),
        "1 of 2 slots are used, but 'c' waits",
    ),
    "a running decode loses a step": (
        Promise.P9,
        lambda: replaced(1, step([("c", 0, 2)], "", "c", "", free=5)),
        "running request 'a' got no token",
    ),
    "the last come is served first": (
        Promise.P9,
        lambda: replaced(0, step([("a", 0, 3), ("c", 0, 2)], "b", "ac", "", free=6)),
        "'c' was admitted before 'b'",
    ),
    "a block is lost": (
        Promise.P11,
        lambda: replaced(2, step([("c", 2, 1)], "", "", "c", free=7)),
        "1 blocks are used, but those running can own 0 to 0",
    ),
    "a block is freed twice": (
        Promise.P11,
        lambda: replaced(2, step([("c", 2, 1)], "", "", "c", free=9)),
        "9 blocks of 8 are free",
    ),
    "a running sequence owns too little": (
        Promise.P11,
        lambda: replaced(0, step([("a", 0, 3), ("b", 0, 2)], "c", "ab", "b", free=7)),
        "1 blocks are used, but those running can own 2",
    ),
    "an empty step": (
        Promise.P10,
        lambda: [*honest(), step([])],
        "step 3 fed nothing",
    ),
    "a request finishes twice": (
        Promise.P10,
        lambda: replaced(1, step([("a", 3, 1), ("c", 0, 2)], "", "c", "ab", free=7)),
        "'b' finished 2 times",
    ),
    "a request never finishes": (
        Promise.P10,
        lambda: honest()[:2],
        "'c' finished 0 times",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trace_is_told_with_its_promise(name: str) -> None:
    promise, make, words = BROKEN[name]
    trace = make()
    found = []
    for check in (
        lambda: check_positions(trace, WORKLOAD),
        lambda: check_limits(trace, WORKLOAD, has_token_budget=True),
        lambda: check_scheduling(trace, WORKLOAD, can_chunk=True),
        lambda: check_accounting(trace, WORKLOAD),
        lambda: check_ends(trace, WORKLOAD, COMPLETIONS),
    ):
        try:
            check()
        except ConformanceFailure as failure:
            found.append(failure)
    told = [failure for failure in found if failure.promise is promise]
    assert any(words in str(failure) for failure in told), [str(f) for f in found]


def test_blocks_reserved_early_offend_nobody() -> None:
    early = [
        step([("a", 0, 3), ("b", 0, 2)], "c", "ab", "b", free=5),  # a holds its whole life of three
        step([("a", 3, 1), ("c", 0, 2)], "", "c", "a", free=6),
        step([("c", 2, 1)], "", "", "c", free=8),
    ]
    check_accounting(early, WORKLOAD)


def test_evidence_is_seen_only_where_it_is() -> None:
    trace = honest()
    assert has_slot_reuse(trace, 2)
    assert not has_slot_reuse(trace, 3)
    assert has_mixed_step(trace)
    assert not has_mixed_step(trace[:1])
    assert not has_chunk(trace)
    assert has_chunk([step([("a", 0, 2, False)])])
    assert not has_preemption(trace)
    assert has_preemption([step([], preempted="a")])


def test_the_mask_definition_matches_one_drawn_by_hand() -> None:
    rows = [RowRecord("a", 2, 2, True), RowRecord("b", 0, 2, True)]
    drawn = ["##" + "#." + "..", "##" + "##" + "..", ".." + ".." + "#.", ".." + ".." + "##"]
    hand = [[bit == "#" for bit in line] for line in drawn]
    assert brute_force_mask(rows, None) == hand
    windowed = brute_force_mask(rows, 2)
    assert list(differences(windowed, hand)) == [
        "query 0 does not see key 0",
        "query 1 does not see key 0",
        "query 1 does not see key 1",
    ]
