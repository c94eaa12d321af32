"""The words of a refusal: any honest ones pass, and those that say nothing are blamed once."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from batchproof.api import Completion, EngineConfig, Request, SamplingParams
from batchproof.checks.answers import structure_findings
from batchproof.checks.broken import BrokenPromise, require
from batchproof.checks.refusals import word_findings
from batchproof.models.catalogue import load_model
from batchproof.records.trial_record import Ledger
from batchproof.workload.workloads import Workload

CPU, DTYPE = torch.device("cpu"), torch.float32
SUBJECT = load_model("gpt2-random", CPU, DTYPE)  # 256 positions
SMALL = EngineConfig(max_model_len=2, block_size=4, num_blocks=3, max_num_batched_tokens=20)
LONG = Request("r", (7,) * 252, 5)
EMPTY, CAPLESS = Request("r", (), 3), Request("r", (1, 2), -5)
UNKNOWN = Request("r", (1, 999_999), 3)


def asking(**changes: object) -> Request:
    return Request("r", (1, 2), 4, sampling=SamplingParams(**changes))  # type: ignore[arg-type]


COLD, NUCLEUS = asking(temperature=-0.5), asking(temperature=1.0, top_p=1.5)
STRANGER, NOBODY = asking(logit_bias=((999_999, 1.0),)), asking(allowed_token_ids=frozenset())
UNENDING, UNMET = asking(stop_token_sequences=((),)), asking(min_tokens=9)
ENDLESS = replace(asking(min_tokens=2, allowed_token_ids=frozenset({7})), eos_token_ids=frozenset({7}))


def is_blamed(request: Request, words: str | None, config: EngineConfig) -> bool:
    refused = Completion.refused(request.request_id, words)  # type: ignore[arg-type]
    try:
        require(word_findings(Workload((request,), config), [refused], SUBJECT, Ledger()))
    except BrokenPromise:
        return True
    return False


HONEST = [
    (LONG, "prompt 252 + cap 5 exceed the context of 2"),
    (LONG, "needs 64 blocks"),
    (LONG, "a step takes 20 tokens, and prompts are not cut"),
    (EMPTY, "length 0"),
    (CAPLESS, "cap \u22125"),
    (UNKNOWN, "999,999"),
    (UNKNOWN, f"ids 0-{SUBJECT.vocab_size - 1}"),
    (COLD, "temp must not be below 0"),
    (COLD, "got \u22120.50"),
    (NUCLEUS, "`top-p` is too large"),
    (NOBODY, "allowedTokenIds"),
    (ENDLESS, "allowed token IDs: none is left"),
]
BAD = (LONG, EMPTY, CAPLESS, UNKNOWN, COLD, NUCLEUS, STRANGER, NOBODY, UNENDING, UNMET)
NO_REASONS = product(BAD, (None, "bad request r", "42"))
KEPT = [  # by the request: no reason either
    (COLD, "top_p must be 1"),
    (ENDLESS, "top_p must be 1"),
    (Request("r", (1, 2), 0), "at most 256 tokens"),
]


@pytest.mark.parametrize(
    ("request_", "words", "config", "is_wrong"),
    [
        *((*each, SMALL, False) for each in HONEST),
        *((*each, SMALL, True) for each in NO_REASONS),
        *((*each, EngineConfig(), True) for each in KEPT),
    ],
)
def test_words_that_name_no_value_and_no_limit_in_force_are_blamed(
    request_: Request, words: str | None, config: EngineConfig, is_wrong: bool
) -> None:
    assert is_blamed(request_, words, config) is is_wrong


def test_words_that_a_terminal_cannot_show_are_escaped() -> None:
    refused = Completion.refused("r", "half \ud83d and \0, but \u00fc\nas it is")
    with pytest.raises(BrokenPromise) as caught:
        require(structure_findings(Request("r", (1,), 1), refused))
    text = str(caught.value)
    text.encode()
    assert "half \\ud83d and \\x00, but \u00fc\n  as it is" in text
