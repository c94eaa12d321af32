"""Each rule about traces, with a trace that keeps it and one that breaks it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    RowRecord,
    StepRecord,
)
from batchproof.checks.broken import BrokenPromise, require
from batchproof.checks.conduct import conduct_findings
from batchproof.checks.happened import (
    ACCEPTED,
    CHUNKS,
    HITS,
    PREEMPTED,
    REJECTED,
    happened_in,
    has_mixed_step,
    has_shared_block,
    has_slot_reuse,
)
from batchproof.checks.masks import brute_force_mask, mask_findings
from batchproof.checks.prefixes import Computed, ComputedPrefixes
from batchproof.checks.scheduling import scheduling_findings
from batchproof.checks.trace import accounting_findings, position_findings
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import finding_text
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Outcome, Workload

# a: 3 prompt tokens, cap 2; b: 2 and 1; c: 2 and 2. Two slots, blocks of two tokens, pool of eight.
REQUESTS = (Request("a", (1, 2, 3), 2), Request("b", (4, 5), 1), Request("c", (6, 7), 2))
CONFIG = EngineConfig(max_num_seqs=2, max_num_batched_tokens=6, block_size=2, num_blocks=8)
WORKLOAD = Workload(REQUESTS, CONFIG)


def step(
    rows: str,
    waiting: str = "",
    admitted: str = "",
    finished: str = "",
    preempted: str = "",
    free: int = 8,
) -> StepRecord:
    """`rows` are like a3+1, one token of a behind three others; an exclamation mark: not sampled."""
    return StepRecord(
        rows_of(rows), tuple(waiting), tuple(admitted), tuple(finished), tuple(preempted), free, 8
    )


def rows_of(text: str) -> tuple[RowRecord, ...]:
    parts = [re.split(r"\+|!", each[1:]) for each in text.split()]
    return tuple(
        RowRecord(name[0], int(context_len), int(query_len), not name.endswith("!"))
        for name, (context_len, query_len, *_) in zip(text.split(), parts, strict=True)
    )


def changed(trace: Sequence[StepRecord], index: int, **fields: Any) -> list[StepRecord]:
    """Other fields in one step; rows and ids may be given as to `step`."""
    if isinstance(fields.get("rows"), str):
        fields["rows"] = rows_of(fields["rows"])
    ids = {name: tuple(each) for name, each in fields.items() if isinstance(each, str)}
    return [*trace[:index], replace(trace[index], **fields | ids), *trace[index + 1 :]]


HONEST = [
    step("a0+3 b0+2", "c", "ab", "b", free=6),
    step("a3+1 c0+2", "", "c", "a", free=7),
    step("c2+1", "", "", "c", free=8),
]


def honest(index: int, **fields: Any) -> list[StepRecord]:
    return changed(HONEST, index, **fields)


COMPLETIONS = tuple(
    Completion(request_id, (0,) * length, FinishReason.LENGTH)
    for request_id, length in (("a", 2), ("b", 1), ("c", 2))
)


SCHEDULED = frozenset({Capability.STEPPING, Capability.TRACING, Capability.SCHEDULING})
CAPABLE = SCHEDULED | {Capability.CHUNKED_PREFILL, Capability.PREFIX_CACHING}


class World(NamedTuple):
    """A workload, its answers, and what the engine declares that serves it."""

    workload: Workload = WORKLOAD
    answers: tuple[Completion, ...] = COMPLETIONS
    capabilities: frozenset[Capability] = CAPABLE
    delay: int = 0

    def judge(self, trace: Sequence[StepRecord]) -> None:
        workload, answers, capabilities, delay = self
        require(conduct_findings(workload, Outcome(answers), trace, capabilities, delay=delay))


def test_what_an_engine_may_do_breaks_no_rule() -> None:
    names = ("rows", "waiting", "admitted", "finished")
    backwards = [
        replace(each, **{name: getattr(each, name)[::-1] for name in names}) for each in HONEST
    ]
    World().judge(backwards)
    grown = [replace(each, num_total_blocks=8 + n) for n, each in enumerate(HONEST)]
    grown = [replace(each, num_free_blocks=each.num_free_blocks + n) for n, each in enumerate(grown)]
    require(accounting_findings(grown, WORKLOAD.with_config(num_blocks=None)))
    grouped = [  # of two groups of layers, one frees what its window has passed
        replace(each, num_cache_groups=2, num_total_blocks=16, num_free_blocks=2 * each.num_free_blocks)
        for each in HONEST
    ]
    require(accounting_findings(grouped, WORKLOAD.with_config(num_blocks=None)))
    long = Workload((Request("a", (1,) * 8, 2),), CONFIG)
    windowed = [step("a0+8!", "", "a", free=7)]
    assert [*accounting_findings(windowed, long, is_idle_at_end=False)]
    assert not [*accounting_findings(windowed, long, is_idle_at_end=False, reach=2)]
    for cap in (14, 12):  # the whole life of a takes the pool, or leaves a block for that of b
        pair = Workload((Request("a", (1,), cap), Request("b", (2,), 1)), CONFIG)
        counted = step("a0+1", "b", "a", free=7)
        uncounted = replace(counted, num_free_blocks=None, num_total_blocks=None)
        for trace in ([counted], [uncounted]):
            rules = [each.rule for each in scheduling_findings(trace, pair, can_chunk=True)]
            assert rules == ([] if cap == 14 else [Rule.REFILL])


Broken = dict[Promise, dict[str, list[StepRecord]]]  # by the words of the finding
BROKEN: Broken = {
    Promise.P7: {
        "context_len is 4, but 3 tokens": honest(1, rows="a4+1 c0+2"),
        "is_sampled is True": honest(0, rows="a0+2 b0+2"),
        "the trace names 'z', which was not requested": [step("z0+2", "abc", "z"), *HONEST[1:]],
    },
    Promise.P9: {
        "'a' waits, but has a slot": honest(0, waiting="ac"),
        "'a' was admitted, but runs already": honest(1, admitted="ac"),
        "3 rows, but max_num_seqs is 2": [step("a0+3 b0+2 c0+1!", "", "abc"), *HONEST[1:]],
        "7 tokens were fed": [*HONEST[:2], step("c2+7")],
        "1 of 2 slots are used, but 'c' waits": [HONEST[0], step("a3+1", "c", "", "a"), HONEST[2]],
        "running request 'a' got no token": [HONEST[0], step("c0+2", "", "c", "", free=5), HONEST[2]],
        "'c' was admitted before 'b'": [
            step("a0+3 c0+2", "b", "ac", free=5),
            step("a3+1 c2+1", "b", "", "ac"),
            step("b0+2", "", "b", "b"),
        ],
    },
    Promise.P10: {
        "step 3 fed nothing": [*HONEST, step("")],
        "'b' finished 2 times": honest(1, finished="ab"),
    },
    Promise.P11: {
        "1 blocks are used, but those running can own 0 to 0": honest(2, num_free_blocks=7),
        "9 blocks of 8 are free": honest(2, num_free_blocks=9),
    },
}


def test_a_trace_shows_what_a_test_is_about() -> None:
    trace = HONEST
    assert has_slot_reuse(trace, 2)
    assert not has_slot_reuse(trace, 3)
    assert has_mixed_step(trace)
    assert not has_mixed_step(trace[:1])
    assert not any(happened_in(trace).values())
    assert happened_in([step("a0+2!")])[CHUNKS]
    assert happened_in([step("", preempted="a")])[PREEMPTED]
    both = "d0+5 e4+1"
    assert has_shared_block([step(both, admitted="de", free=4)], 2)
    assert not has_shared_block([step(both, admitted="de", free=2)], 2)
    assert not has_shared_block([step(both, admitted="de", finished="e", free=5)], 2)
    assert not happened_in([D_IS_COMPUTED, step("d5+1")])[HITS]
    assert happened_in([D_IS_COMPUTED, step("d4+2", admitted="d", preempted="d")])[HITS]


# d, e and f begin alike; g is another one. d is answered with 9 and 8.
SHARING = EngineConfig(max_num_seqs=3, block_size=2, num_blocks=8, prefix_caching=True)
ALIKE = Workload(
    (
        Request("d", (1, 2, 3, 4, 5), 2),
        Request("e", (1, 2, 3, 4, 6), 1),
        Request("f", (1, 2, 3, 4, 5, 9, 7), 1),
        Request("g", (4, 3, 2, 1), 1),
    ),
    SHARING,
)
ANSWERS = tuple(
    Completion(name, tokens, FinishReason.LENGTH)
    for name, tokens in (("d", (9, 8)), ("e", (7,)), ("f", (7,)), ("g", (7,)))
)
D_IS_COMPUTED = step("d0+5", admitted="d")


def begins(trace: Sequence[StepRecord], earlier: Sequence[Computed] = ()) -> None:
    require(position_findings(trace, ALIKE, ComputedPrefixes(ALIKE, ANSWERS, earlier)))


def test_a_request_may_begin_behind_what_was_computed() -> None:
    for trace in (
        [D_IS_COMPUTED, step("e3+2", admitted="e")],  # of no whole block
        [step("e4+1 d0+5", admitted="de")],  # of one in the same step, as vLLM does
        [D_IS_COMPUTED, step("d5+1"), step("f6+1", admitted="f")],  # with its answer
        [D_IS_COMPUTED, step("e4+1", "d", "e", preempted="d"), step("d4+2", admitted="d")],
    ):
        begins(trace)
        assert happened_in(trace)[HITS]


NO_BEGINNINGS: Broken = {
    Promise.P7: {
        "step 1, request 'g': it begins behind 2 tokens that were never computed": [
            D_IS_COMPUTED,
            step("g2+2", admitted="g"),
        ],
        "step 1, request 'e': it begins behind 4 tokens": [
            step("d0+2!", admitted="d"),
            step("e4+1", admitted="e"),
            step("d2+3"),
        ],
        "query_len is 0, but 1 tokens were due": [D_IS_COMPUTED, step("e4+0", admitted="e")],
        "context_len is 0, but 5 tokens were fed before": [D_IS_COMPUTED, step("d0+5")],
    }
}


def test_what_earlier_workloads_have_computed_counts_as_far_as_it_was_fed() -> None:
    trace = [step("e4+1", admitted="e")]
    begins(trace, [Computed((1, 2, 3, 4, 8), 4)])
    begins(trace, [Computed((1, 2, 3), 5)])  # the rest is not known: an abort has hidden it
    for too_little in (Computed((1, 2, 3, 4, 8), 3), Computed((1, 2, 4, 3), 4)):
        with pytest.raises(BrokenPromise, match="that were never computed"):
            begins(trace, [too_little])


def test_hits_are_for_engines_that_declare_them_and_configs_that_ask_for_them() -> None:
    trace = [
        step("d0+5", "efg", "d", free=5),
        step("d5+1 e4+1 f4+3", "", "ef", "def", free=8),
        step("g0+4", "", "g", "g", free=8),
    ]
    capable = frozenset({Capability.TRACING, Capability.PREFIX_CACHING})
    World(ALIKE, ANSWERS, capable).judge(trace)
    for world in (
        World(ALIKE, ANSWERS, capable - {Capability.PREFIX_CACHING}),
        World(ALIKE.with_config(prefix_caching=False), ANSWERS, capable),
    ):
        with pytest.raises(BrokenPromise, match="context_len is 4, but 0 tokens were fed before"):
            world.judge(trace)


def test_blocks_taken_over_were_free_before_and_leave_no_room_for_the_next() -> None:
    """A prefix of eight blocks comes back in a pool of nine: the next request has to wait."""
    config = EngineConfig(max_num_seqs=2, block_size=2, num_blocks=9, prefix_caching=True)
    long, short = Request("long", tuple(range(17)), 1), Request("s", (7,), 2)
    workload = Workload((long, short), config)
    trace = [
        StepRecord((RowRecord("long", 16, 1, True),), ("s",), ("long",), ("long",), (), 9, 9),
        StepRecord((RowRecord("s", 0, 1, True),), (), ("s",), (), (), 8, 9),
    ]
    require(scheduling_findings(trace, workload, can_chunk=True))


def test_the_mask_definition_matches_one_drawn_by_hand() -> None:
    rows = [RowRecord("a", 2, 2, True), RowRecord("b", 0, 2, True)]
    drawn = ["##" + "#." + "..", "##" + "##" + "..", ".." + ".." + "#.", ".." + ".." + "##"]
    hand = [[bit == "#" for bit in line] for line in drawn]
    assert brute_force_mask(rows, None) == hand
    (finding,) = mask_findings(torch.tensor(hand), rows, window=2)
    assert finding.rule is Rule.MASK
    assert "query 0 sees key 0, and 2 more bits differ" in finding_text(finding)
    hand[0][4] = True
    rules = [each.rule for each in mask_findings(torch.tensor(hand), rows, window=2)]
    assert rules == [Rule.MASK_LEAK, Rule.MASK]


# l: 2 prompt tokens, cap 5; m: 1 and 6; n: 2 and 2; one waits for two slots. An EOS ends l in step 1.
LATE = Workload(
    (Request("l", (1, 2), 5, frozenset({9})), Request("m", (3,), 6), Request("n", (4, 5), 2)),
    EngineConfig(max_num_seqs=2, max_num_batched_tokens=6, block_size=2, num_blocks=8),
)
LATE_ANSWERS = (
    Completion("l", (7, 9), FinishReason.STOP),
    Completion("m", (7,) * 6, FinishReason.LENGTH),
    Completion("n", (7, 7), FinishReason.LENGTH),
)
UP_TO_THE_EOS = [step("l0+2 m0+1", "n", "lm", free=6), step("l2+1 m1+1", "n", free=5)]


def ends(delay: int, surplus: int | None = None) -> list[StepRecord]:
    """l finishes `delay` steps after its EOS, with as many surplus rows, or so many."""
    trace = list(UP_TO_THE_EOS)
    surplus = delay if surplus is None else surplus
    for late in range(1, delay + 1):
        row = f"l{2 + late}+1" if late <= surplus else ""
        trace.append(step(f"{row} m{1 + late}+1", "n", free=4))
    last = trace[-1]
    trace[-1] = replace(last, finished=("l",), num_free_blocks=8 - (2 + delay + 1) // 2)
    fed = 2 + delay
    trace.append(step(f"m{fed}+1 n0+2", "", "n", free=5))
    trace.append(step(f"m{fed + 1}+1 n2+1", "", "", "n", free=5))
    trace += [step(f"m{each}+1", free=5) for each in range(fed + 2, 6)]
    trace[-1] = replace(trace[-1], finished=(*trace[-1].finished, "m"), num_free_blocks=8)
    return trace


@pytest.mark.parametrize(("taken", "surplus", "declared"), [(1, 0, 0), (2, 2, 1)])
def test_an_eos_that_is_read_later_than_declared_breaks_p9(
    taken: int, surplus: int, declared: int
) -> None:
    world = World(LATE, LATE_ANSWERS, SCHEDULED, declared)
    world.judge(ends(declared))
    words = f"step {1 + taken}: request 'l' finishes, but its last token was sampled in step 1"
    with pytest.raises(BrokenPromise, match=words) as caught:
        world.judge(ends(taken, surplus))
    assert caught.value.finding.promise is Promise.P9


LATE_BY_ONE = ends(1)
HIDDEN: Broken = {
    Promise.P9: {
        "step 0: request 'l' finishes, but its last token was sampled in step 1": changed(
            changed(LATE_BY_ONE, 0, finished="l"), 2, finished=""
        ),
        "step 2: 3 tokens of request 'l' are fed": changed(
            LATE_BY_ONE, 2, preempted="l", rows="l0+3! m2+1"
        ),
        "step 2: 3 requests hold 2 slots": [
            *UP_TO_THE_EOS,
            step("m2+1 n0+2", "", "n", "l", free=5),
            step("m3+1 n2+1", "", "", "n", free=6),
            step("m4+1", free=5),
            step("m5+1", "", "", "m"),
        ],
        "step 2: running request 'm' got no token": changed(LATE_BY_ONE, 2, rows="l3+1"),
    },
    Promise.P11: {
        "step 2: 5 blocks are used, but those running can own 2 to 4": changed(
            LATE_BY_ONE, 2, num_free_blocks=3
        )
    },
    Promise.P14: {
        "request 'l' was sampled 3 times, but has 2 tokens": changed(
            changed(LATE_BY_ONE, 1, finished="l", num_free_blocks=7), 2, finished=""
        )
    },
}


def test_an_eos_at_the_cap_is_foreseen() -> None:
    """Without a delay of its own: a surplus row behind it is one too many."""
    first, *others = LATE.requests
    at_the_cap = LATE.with_requests([replace(first, max_new_tokens=2), *others])
    world = World(at_the_cap, LATE_ANSWERS, SCHEDULED, delay=1)
    world.judge(ends(0))
    with pytest.raises(BrokenPromise, match="step 2: request 'l' finishes"):
        world.judge(ends(1))


# Two of three drafts are accepted, then none of one.
DRAFTING = Workload(
    (Request("a", (1, 2), 6),), EngineConfig(max_num_batched_tokens=8, num_speculative_tokens=3)
)
DRAFTED = [
    step("a0+2", admitted="a", free=7),
    StepRecord((RowRecord("a", 2, 4, True, num_drafted=3, num_accepted=2),), (), (), (), ()),
    StepRecord((RowRecord("a", 5, 2, True, num_drafted=1),), (), (), (), ()),
    step("a6+1", finished="a"),
]


DRAFTED_ANSWERS = (Completion("a", (5, 6, 7, 8, 9, 10), FinishReason.LENGTH),)


def test_a_trace_with_drafts_keeps_every_rule() -> None:
    World(DRAFTING, DRAFTED_ANSWERS).judge(DRAFTED)
    counts = happened_in(DRAFTED)
    assert (counts[ACCEPTED], counts[REJECTED]) == (2, 2)


def drafted(number: int, *row: Any) -> list[StepRecord]:
    return changed(DRAFTED, number, rows=(RowRecord("a", *row),))


WRONG_DRAFTS: Broken = {
    Promise.P17: {
        "num_drafted is 4 and num_accepted 2": drafted(1, 2, 5, True, 4, 2),  # beyond the config
        "at most 0 drafts": drafted(0, 0, 3, False, 1, 0),  # in a chunk
    },
    Promise.P7: {
        "context_len is 6, but 5 tokens": drafted(2, 6, 2, True, 1, 0),  # a rejected one is kept
        "context_len is 5, but 4 tokens": drafted(1, 2, 4, True, 3, 1),  # one is lost
    },
}


@pytest.mark.parametrize(
    ("world", "promise", "words", "trace"),
    [
        pytest.param(world, promise, words, trace, id=words)
        for world, broken in (
            (World(), BROKEN),
            (World(ALIKE, ANSWERS), NO_BEGINNINGS),
            (World(LATE, LATE_ANSWERS, SCHEDULED, delay=1), HIDDEN),
            (World(DRAFTING, DRAFTED_ANSWERS), WRONG_DRAFTS),
        )
        for promise, of in broken.items()
        for words, trace in of.items()
    ],
)
def test_a_broken_trace_names_its_promise(
    world: World, promise: Promise, words: str, trace: list[StepRecord]
) -> None:
    """One of the findings is of this promise, in these words."""
    with pytest.raises(BrokenPromise) as caught:
        world.judge(trace)
    findings = (caught.value.finding, *caught.value.others)
    texts = [finding_text(each) for each in findings if each.promise is promise]
    assert any(words in each for each in texts), findings
