"""How the suite says which token a request's parameters choose, and with which probability."""

import math
import random
import re
from collections import Counter
from contextlib import nullcontext
from typing import cast

import pytest
import torch
from torch import Tensor

from batchproof.api import Capability, Completion, FinishReason, Request, SamplingParams
from batchproof.checks.answers import presence_findings
from batchproof.checks.broken import BrokenPromise, require
from batchproof.checks.draws import frequency_findings
from batchproof.checks.logprobs import logprob_findings
from batchproof.oracle.choosing import kept, num_until_end, probabilities, processed
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)


def request(eos: frozenset[int] = frozenset(), **fields: object) -> Request:
    return Request("r", (1, 1), 3, eos, SamplingParams(**fields))  # type: ignore[arg-type]


def after(asked: Request, tokens: tuple[int, ...] = (0, 0, 3)) -> Tensor:
    return processed(LOGITS.repeat(len(tokens), 1), asked, tokens)


def test_each_stage_does_what_its_formula_says() -> None:
    inf = math.inf
    assert after(request(allowed_token_ids=frozenset({1})))[0].tolist() == [-inf, 1, -inf, -inf]
    assert after(request(logit_bias=((2, 5.0),)))[1].tolist() == [2, 1, 5, -1]
    held = after(request(frozenset({0, 9}), min_tokens=2))
    assert held[:, 0].tolist() == [-inf, -inf, 2]
    # Tokens 1 (prompt) and, later, 0: positive logits are divided, negative ones multiplied.
    repeated = after(request(repetition_penalty=2.0), (3, 0, 2))
    assert repeated[0].tolist() == [2, 0.5, 0, -1]
    assert repeated[1].tolist() == [2, 0.5, 0, -2]
    assert repeated[2].tolist() == [1, 0.5, 0, -2]
    counted = after(request(frequency_penalty=0.5, presence_penalty=0.25))
    assert counted[:, 0].tolist() == [2, 1.25, 0.75], "once and twice; the prompt does not count"
    assert counted[2, 1] == 1.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"top_k": 2}, [1, 1, 0, 0]),
        ({"top_p": 0.7}, [1, 1, 0, 0]),
        ({"min_p": 0.3, "temperature": 2.0}, [1, 1, 1, 0]),
    ],
)
def test_what_may_be_drawn(fields: dict[str, float], expected: list[int]) -> None:
    asked = SamplingParams(**{"temperature": 1.0} | fields)  # type: ignore[arg-type]
    assert kept(LOGITS[None], asked)[0].long().tolist() == expected
    shares = probabilities(LOGITS[None], asked)[0]
    assert shares.sum().item() == pytest.approx(1)
    assert (shares > 0).long().tolist() == expected


def test_slack_lets_in_what_rounding_could_let_in_and_no_more() -> None:
    asked = SamplingParams(temperature=1.0, top_k=2)
    assert kept(LOGITS[None], asked, 0.49)[0].tolist() == [True, True, False, False]
    assert kept(LOGITS[None], asked, 0.51)[0].tolist() == [True, True, True, False]
    tied = torch.tensor([3.0, 1.0, 1.0 + 1e-9, 1.0 - 1e-9], dtype=torch.float64)
    asked = SamplingParams(temperature=1.0, top_p=0.8)
    assert kept(tied[None], asked)[0].tolist() == [True, False, True, False]
    assert kept(tied[None], asked, 1e-6)[0].tolist() == [True] * 4


@pytest.mark.parametrize(
    ("fields", "tokens", "expected"),
    [
        ({}, (5, 6, 7), None),
        ({"stop_token_sequences": ((5, 6),)}, (5, 6, 7), 2),
        ({"stop_token_sequences": ((1, 5),)}, (5, 6), None),  # a prompt's token stops nothing
        ({"stop_token_sequences": ((5,),), "min_tokens": 2}, (5, 6, 5), 3),
        ({"stop_token_sequences": ((6, 7),), "eos": {6}}, (5, 6, 7), 2),
    ],
)
def test_where_an_answer_ends(
    fields: dict[str, object], tokens: tuple[int, ...], expected: int | None
) -> None:
    asked = request(frozenset(fields.pop("eos", ())), **fields)  # type: ignore[call-overload]
    assert num_until_end(asked, tokens) == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": ((1, math.inf),)}, "a logit_bias is [inf], but must be finite"),
        ({"min_tokens": 4}, "min_tokens is 4, above max_new_tokens 3"),
    ],
)
def test_parameters_out_of_range_are_refused_by_value_and_rule(
    fields: dict[str, object], words: str
) -> None:
    """Those at a bound, and those that no conformance test asks for."""
    asked = SamplingParams(**fields)  # type: ignore[arg-type]
    assert words in str(asked.refusal(9, 3, frozenset({4})))
    assert SamplingParams().refusal(9, 3, frozenset()) is None


def biased(shift: float) -> list[int]:
    rng = random.Random(1)
    return [int(rng.random() < 1 / 3 + shift) for _ in range(5200)]


@pytest.mark.parametrize(
    ("tokens", "shares", "words"),
    [
        (biased(0.0), (2 / 3, 1 / 3), None),
        (biased(0.05), (2 / 3, 1 / 3), "do not have their probabilities"),
        ([0, 1] * 300 + [7] * 200, (0.5, 0.5), "and others: 500 of 800"),
        # Rare answers were held to more than can be expected of them, which blamed honest engines.
        ([0] * 90 + [1] * 57 + [2] * 3, (0.6, 0.35, 0.05), None),
    ],
    ids=["right", "shifted by five percent", "never drawn", "rare"],
)
def test_draws_have_their_probabilities(
    tokens: list[int], shares: tuple[float, ...], words: str | None
) -> None:
    drawn = Counter((each,) for each in tokens)
    expected = {(token,): share for token, share in enumerate(shares)}
    with pytest.raises(BrokenPromise, match=words) if words else nullcontext():
        require(frequency_findings(request(temperature=1.0), drawn, expected))


@pytest.mark.parametrize(
    ("given", "words"),
    [((None,), "got 1 entries, None for [0]"), ((None, None), "got 2 entries, None for [0, 1]")],
)
def test_each_prompt_token_but_the_first_has_logprobs(given: tuple[None, ...], words: str) -> None:
    """What is given is judged by no model before it is whole."""
    answer = Completion("r", (1,), FinishReason.LENGTH, prompt_logprobs=given)
    with pytest.raises(BrokenPromise, match=re.escape(words)):
        require(logprob_findings(request(prompt_logprobs=1), answer, cast(Oracle, None)))


@pytest.mark.parametrize("is_stepped", [False, True])
def test_prompt_logprobs_may_be_absent_from_events_alone(is_stepped: bool) -> None:
    workload = Workload((request(prompt_logprobs=1),), arrivals=(0,) if is_stepped else None)
    answers = [Completion("r", (1,), FinishReason.LENGTH)]
    has_them = {Capability.PROMPT_LOGPROBS}
    require(presence_findings(workload, answers, set(), Promise.P1))
    with nullcontext() if is_stepped else pytest.raises(BrokenPromise, match="got none at all"):
        require(presence_findings(workload, answers, has_them, Promise.P1))
