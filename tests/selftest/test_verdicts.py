"""The rules that decide, each with an answer that passes it and one that does not."""

import math
from dataclasses import replace

import pytest
import torch

from batchproof.api import Completion, FinishReason, Request
from batchproof.checks.answers import choice_findings, completion_findings
from batchproof.checks.broken import BrokenPromise, require
from batchproof.checks.masks import move_findings
from batchproof.findings.finding import Finding, Rule
from batchproof.findings.finding_text import finding_text
from batchproof.oracle.oracle import ErrorUnit, Oracle, margins
from batchproof.records.trial_record import Ledger
from batchproof.requirements.promises import Promise
from tests.selftest.conftest import oracle_of

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def right(oracle: Oracle, request: Request) -> Completion:
    token_ids, reason = oracle.expected(request)
    answer = oracle.answer(request.prompt_token_ids, request.max_new_tokens)
    return Completion(request.request_id, token_ids, reason, logits=answer.logits[: len(token_ids)])


def judge(oracle: Oracle, request: Request, completion: Completion) -> Ledger:
    ledger = Ledger()
    require(completion_findings([request], [completion], oracle, ledger))
    return ledger


def broken(oracle: Oracle, request: Request, **changes: object) -> Finding:
    with pytest.raises(BrokenPromise) as caught:
        judge(oracle, request, replace(right(oracle, request), **changes))  # type: ignore[arg-type]
    return caught.value.finding


def test_what_differs_from_the_right_answer_breaks_its_promise(oracle: Oracle) -> None:
    request = Request("r", PROMPT, 6)
    ledger = judge(oracle, request, right(oracle, request))
    assert (ledger.num_requests, ledger.num_steps, ledger.num_near_ties) == (1, 6, 0)

    more = oracle.answer(PROMPT, 7).token_ids
    assert more[:3] == oracle.answer(PROMPT, 3).token_ids
    for token_ids in (more, more[:5], ()):
        assert broken(oracle, request, token_ids=token_ids).promise is Promise.P2
    stopping = replace(request, eos_token_ids=frozenset({more[2]}))
    assert broken(oracle, stopping, token_ids=more[:6]).promise is Promise.P3
    last = Request("r", PROMPT, more.index(more[5]) + 1, frozenset({more[5]}))
    judge(oracle, last, right(oracle, last))  # an EOS on the cap is a stop
    assert broken(oracle, last, finish_reason=FinishReason.LENGTH).promise is Promise.P3
    refused = {"token_ids": (), "finish_reason": FinishReason.ERROR, "error": "full", "logits": None}
    assert broken(oracle, request, **refused).promise is Promise.P12

    tokens = list(more[:6])
    tokens[3] = (tokens[3] + 1) % 256
    failure = broken(oracle, request, token_ids=tuple(tokens), logits=None)
    assert (failure.promise, failure.rule) == (Promise.P1, Rule.TOKEN)
    assert (failure.request_id, failure.step) == ("r", 3)
    words = f"step 3: got token {tokens[3]}, but should be {more[3]}"
    assert words in finding_text(failure)
    logits = oracle.answer(PROMPT, 6).logits
    judge(oracle, request, replace(right(oracle, request), logits=logits + 5.0))  # nothing changes
    moved = logits.clone()
    moved[4, 17] += 1000 * oracle.error.max_abs
    for logits, words in (
        (moved, "step 4: the logits are off"),
        (torch.full((6, 256), float("nan")), "hold NaN or infinity"),
        (torch.zeros(1, 256), "shape (1, 256)"),
    ):
        assert words in finding_text(broken(oracle, request, logits=logits))


@pytest.mark.parametrize(
    ("asked", "given", "rules"),
    [
        ("ab", "ba", [Rule.ORDER]),
        ("ab", "a", [Rule.MISSING]),
        ("aa", "a", [Rule.MISSING]),
        ("ab", "abb", [Rule.SURPLUS]),
        ("ab", "aa", [Rule.TWICE]),
        ("abcd", "aab", [Rule.MISSING, Rule.TWICE]),
        ("abc", "aax", [Rule.STRANGER, Rule.TWICE]),
        ("ab", "axaa", [Rule.STRANGER, Rule.MISSING, Rule.TWICE, Rule.SURPLUS]),
    ],
)
def test_all_that_is_wrong_with_the_ids_is_found(
    oracle: Oracle, asked: str, given: str, rules: list[Rule]
) -> None:
    """Answers that belong to no request are not judged besides."""
    requests = [Request(each, PROMPT, 2) for each in asked]
    completions = [Completion(each, (), FinishReason.STOP) for each in given]
    found = [*completion_findings(requests, completions, oracle, Ledger())]
    assert [each.rule for each in found] == rules


def test_all_findings_are_given_and_the_strictest_decides(oracle: Oracle) -> None:
    """One wrong answer does not hide another, nor its tokens its length; each rule is named once."""
    requests = [Request(name, PROMPT, 6) for name in "abc"]
    tokens = oracle.answer(PROMPT, 7).token_ids
    wrong = (*tokens[:3], (tokens[3] + 1) % 256, *tokens[4:])
    answers = [
        Completion("a", wrong, FinishReason.LENGTH),
        Completion("b", wrong[:6], FinishReason.LENGTH),
        Completion("c", tokens[:6], FinishReason.STOP),
    ]
    with pytest.raises(BrokenPromise) as caught:
        require(completion_findings(requests, answers, oracle, Ledger()))
    found = [(each.rule, each.request_id) for each in (caught.value.finding, *caught.value.others)]
    assert found == [(Rule.CAP, "a"), (Rule.TOKEN, "a"), (Rule.FINISH_REASON, "c")]


def test_nan_in_float64_explains_no_flip(oracle: Oracle) -> None:
    """A comparison with NaN is false both ways, so that every answer once passed."""
    request = Request("r", PROMPT, 2)
    tokens = tuple((token + 1) % 256 for token in oracle.answer(PROMPT, 2).token_ids)
    answer, ledger = Completion("r", tokens, FinishReason.LENGTH), Ledger()
    with pytest.MonkeyPatch.context() as patch:
        blind = torch.full((2, 256), math.nan, dtype=torch.float64)
        patch.setattr(oracle, "score", lambda *_: blind)
        (found,) = choice_findings(request, answer, oracle, ledger)
    assert found.rule is Rule.CHOICE


@pytest.mark.parametrize("should_move", [True, False])
def test_nan_neither_stays_nor_moves(should_move: bool) -> None:
    (finding,) = move_findings(2, 1, math.nan, should_move, bound=1.0, allowed=0.0)
    assert finding.rule is (Rule.SEEN_STAYS if should_move else Rule.UNSEEN_MOVES)


def test_a_near_tie_in_bfloat16_is_proven_by_regret_and_counted() -> None:
    """The float64 choice is followed where the bfloat16 reference flips, and the other way round."""
    oracle = oracle_of("gpt2-random", torch.bfloat16)
    bound = 2 * oracle.kappa * oracle.error.max_abs
    tie = next(
        (seed, step)
        for seed in range(200)
        for step in range(8)
        if 0 < margins(oracle.answer((seed, 7, seed // 2), 8).logits.double())[step] < 0.3 * bound
    )
    prompt, step = (tie[0], 7, tie[0] // 2), tie[1]
    answer = oracle.answer(prompt, step + 1)
    second = int(answer.logits[step].topk(2).indices[1])
    request = Request("r", prompt, step + 1)
    flipped = Completion("r", (*answer.token_ids[:-1], second), FinishReason.LENGTH)
    assert judge(oracle, request, flipped).num_near_ties >= 1
    worst = int(answer.logits[step].argmin())
    with pytest.raises(BrokenPromise, match=f"got token {worst}"):
        judge(oracle, request, replace(flipped, token_ids=(*answer.token_ids[:-1], worst)))


@pytest.mark.parametrize("error", [1e-5, 0.1])
def test_the_share_of_near_ties_is_bounded_though_few_steps_show_any(error: float) -> None:
    """Margins are exponential, as those of random models are; most calibrations see none below 1e-3."""
    rng = torch.Generator().manual_seed(0)
    margins = torch.empty(288, dtype=torch.float64).exponential_(generator=rng)
    exact = torch.stack([margins, torch.zeros_like(margins)], dim=-1)
    unit = ErrorUnit.measured([([0] * 288, exact + torch.tensor([error, 0.0]), exact)], kappa=8)
    true_share = 1 - math.exp(-16 * error)
    assert true_share < unit.near_tie_share < 4 * true_share
