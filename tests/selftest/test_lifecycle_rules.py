"""What the checks of P23 grant an engine and what they do not, where no built-in engine shows it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    RowRecord,
    SamplingParams,
    StepRecord,
    TokenEvent,
)
from batchproof.checks.lifecycle import Cuts, parts, standing_findings
from batchproof.checks.prefixes import ComputedPrefixes
from batchproof.checks.trace import LateEnds, position_findings
from batchproof.findings.finding import Rule
from batchproof.workload.workloads import PAUSE, RESUME, UPDATE, Interruption, Outcome, Workload

ASKED = Request("a", (1, 2, 3, 4), 4)
ANSWER = Completion("a", (10, 11, 22, 23), FinishReason.LENGTH)
UPDATED = Workload((ASKED,), arrivals=(0,), interruptions=(Interruption(2, UPDATE, 5),))


def outcome(*steps: int) -> Outcome:
    """Returns one whose events come in these steps."""
    tokens = zip(steps, ANSWER.token_ids, strict=True)
    events = tuple((step, TokenEvent("a", token)) for step, token in tokens)
    return Outcome((ANSWER,), events, (0,) * (max(steps) + 1))


def oracle_of(weights: int) -> Any:
    """Returns an oracle that would choose 20 and more after the update, 10 and more before."""
    right = 20 if weights else 10

    def choices(asked: Request) -> tuple[int, ...]:
        assert asked.sampling is None, "a draw has no right answer"
        return (right + len(asked.prompt_token_ids) - 4,)

    def score(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
        ids = torch.arange(len(prompt), len(prompt) + len(tokens)) + right - 4
        return torch.nn.functional.one_hot(ids, 32).double()

    return SimpleNamespace(choices=choices, score=score, logit_bound=0.0)


def states(*steps: int, records: tuple[StepRecord, ...] = ()) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the states that answer for a greedy request, and checks that they answer for one whose
    draws leave one token, too."""
    drawn = replace(ASKED, sampling=SamplingParams(temperature=3.0, top_k=1))
    found, same = (
        [
            (part.weights, part.completion.token_ids)
            for part in parts([(asked, ANSWER)], UPDATED, outcome(*steps), records, oracle_of)
        ]
        for asked in (ASKED, drawn)
    )
    assert found == same
    return found


def test_without_a_trace_the_first_step_behind_an_update_may_return_old_tokens() -> None:
    old, new = (0, (10, 11)), (5, (22, 23))
    assert states(0, 1, 2, 3) == [old, new]
    assert states(1, 2, 3, 4) == [old, new]
    assert states(2, 3, 4, 5) == [(0, (10,)), (5, (11, 22, 23))], "one that comes later is too late"


def test_without_a_trace_a_token_of_a_later_step_shows_that_an_engine_does_not_stand_still() -> None:
    stood = Workload((ASKED,), interruptions=(Interruption(2, PAUSE), Interruption(5, RESUME)))
    assert not [*standing_findings(stood, outcome(0, 1, 2, 5), has_trace=False)]
    (finding,) = standing_findings(stood, outcome(0, 1, 3, 5), has_trace=False)
    assert (finding.rule, finding.step) == (Rule.STANDING_TOKEN, 3)


def record(*rows: tuple[str, int, int], **changes: tuple[str, ...]) -> StepRecord:
    """Returns a record of rows (id, context_len, query_len), each of which samples a token."""
    fields = dict.fromkeys(("waiting", "admitted", "finished", "preempted"), ()) | changes
    return StepRecord(tuple(RowRecord(*row, True) for row in rows), **fields)


def test_what_is_in_flight_in_a_clearing_is_found_from_there_on_alone() -> None:
    wanted = (ASKED, *(Request(name, (1, 2, 3, 4, 10, 11, 9), 1) for name in "bc"))
    cut = Cuts(frozenset({1}), clearings=frozenset({1}))
    workload = Workload(wanted)
    first, on = record(("a", 0, 4), admitted=("a",)), record(("a", 4, 1))

    def rules(*rest: StepRecord) -> list[Rule]:
        prefixes = ComputedPrefixes(workload, (ANSWER,))
        return [each.rule for each in position_findings([first, on, *rest], workload, prefixes, cut)]

    again, behind = record(("b", 0, 7), admitted=("b",)), record(("c", 5, 2), admitted=("c",))
    assert rules(record(("b", 5, 2), admitted=("b",))) == [Rule.PREFIX]
    assert not rules(again, behind)


def test_old_keys_are_none_after_an_update_but_for_a_request_that_has_ended() -> None:
    cut = Cuts(*[frozenset({1})] * 3)
    trace = [record(("a", 0, 4), admitted=("a",)), record(("a", 4, 1))]
    workload = Workload((ASKED,))
    (finding,) = position_findings(trace, workload, cuts=cut)
    assert finding.rule is Rule.POSITIONS
    late = LateEnds({"a": 0}, {"a": 1})
    assert not [*position_findings(trace, workload, cuts=cut, ends=late)]
    cleared = Cuts(frozenset({1}), clearings=frozenset({1}))
    for row in (("a", 4, 1), ("a", 0, 5)):  # it keeps its keys, or computes them again
        trace[1] = record(row)
        assert not [*position_findings(trace, workload, cuts=cleared)]
