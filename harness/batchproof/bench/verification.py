"""Whether timed tokens may be counted, by the rules of `batchproof.checks.answers`.

Every completion of every round must have the right id, place, length and finish reason. All tokens are
compared with the right answers; where that would take far longer than the benchmark, the tokens of a
random sample, whose seed is recorded, are checked instead: each must be the best choice in float64 up
to rounding (rule O3), given the engine's own tokens before it.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence

from batchproof.api import Completion, Request
from batchproof.checks.answers import (
    check_order,
    choice_findings,
    near_tie_findings,
    structure_findings,
    token_findings,
)
from batchproof.checks.broken import require
from batchproof.oracle.oracle import Oracle
from batchproof.records.trial_record import Ledger

MAX_TOKENS_CHECKED_IN_FULL = 8192  # output tokens of one round
SAMPLE_SIZE = 16  # requests of a larger round


class Verifier:
    """Checks all rounds of one engine on one workload."""

    def __init__(self, oracle: Oracle, sample_size: int | None) -> None:
        """`sample_size`: requests checked in each round; None: all of them."""
        self._oracle = oracle
        self._sample_size = sample_size
        self._sample_seed = secrets.randbits(32)  # no engine can know whom it will meet
        self._ledger = Ledger()
        self._num_completions = 0
        self._num_by_reference = 0  # tokens equal to the right answer's, or a near-tie with it
        self._num_scored = 0  # each token a best choice in float64, up to rounding

    def judge(self, lap: int, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
        """Checks one round. Raises `BrokenPromise` at the first wrong answer."""
        check_order(requests, completions)
        for request, completion in zip(requests, completions, strict=True):
            require(structure_findings(request, completion))
        self._num_completions += len(requests)
        for index in self._chosen(lap, len(requests)):
            self._check(requests[index], completions[index])
        require(near_tie_findings(self._oracle, self._ledger))

    def _chosen(self, lap: int, num_requests: int) -> Sequence[int]:
        if self._sample_size is None or self._sample_size >= num_requests:
            return range(num_requests)
        chosen = random.Random(self._sample_seed + lap)
        return chosen.sample(range(num_requests), self._sample_size)

    def _check(self, request: Request, completion: Completion) -> None:
        if self._sample_size is None or self._oracle.subject.oracle is not None:
            require(token_findings(request, completion, self._oracle, self._ledger))
            self._num_by_reference += 1
        else:
            require(choice_findings(request, completion, self._oracle, self._ledger))
            self._num_scored += 1
        self._ledger.num_steps += len(completion.token_ids)

    @property
    def has_checked(self) -> bool:
        """Whether the tokens of at least one completion were checked."""
        return self._num_by_reference + self._num_scored > 0

    def as_dict(self) -> dict[str, int]:
        """Returns the counts and the seed of the samples, for the result file."""
        return {
            "num_completions": self._num_completions,
            "num_by_reference": self._num_by_reference,
            "num_scored": self._num_scored,
            "num_near_ties": self._ledger.num_near_ties,
            "sample_seed": self._sample_seed,
        }


def default_sample_size(num_output_tokens: int) -> int | None:
    """Returns None, which is all requests, as long as the right answers are cheap."""
    return None if num_output_tokens <= MAX_TOKENS_CHECKED_IN_FULL else SAMPLE_SIZE
