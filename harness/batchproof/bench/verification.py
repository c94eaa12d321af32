"""Whether timed tokens may be counted, by the rules of `batchproof.checks.answers`.

All tokens are compared with the right answers; where that would take far longer than the benchmark, the
tokens of a random sample, whose seed is recorded, are checked by rule O3 instead. A problem is
attributed to the engine that has it, so that the others go on.
"""

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from batchproof.api import Completion, Request
from batchproof.checks.answers import (
    choice_findings,
    near_tie_findings,
    order_findings,
    structure_findings,
    token_findings,
)
from batchproof.checks.broken import BrokenPromise, require
from batchproof.errors import EngineHang, OracleError, UnsupportedModelError
from batchproof.findings.finding_text import first_line
from batchproof.oracle.oracle import Oracle
from batchproof.records.trial_record import Ledger
from batchproof.run.failures import ConformanceFailure

MAX_TOKENS_CHECKED_IN_FULL = 8192  # output tokens of one round
SAMPLE_SIZE = 16  # requests of a larger round


class Verifier:
    """Checks all rounds of one engine on one workload."""

    def __init__(self, oracle: Oracle, sample_size: int | None) -> None:
        """`sample_size`: requests checked in each round; None: all of them."""
        self._oracle = oracle
        self._sample_size = sample_size
        self._sample_seed = secrets.randbits(32)  # unpredictable for an engine
        self._ledger = Ledger()
        self._num_completions = 0
        self._num_by_reference = 0  # tokens equal to the right answer's, or a near-tie with it
        self._num_scored = 0  # each token a best choice in float64, up to rounding

    def judge(self, lap: int, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
        """Checks one round. Raises `BrokenPromise` at the first wrong answer, and `NoRightAnswer`."""
        require(order_findings(requests, completions))
        for request, completion in zip(requests, completions, strict=True):
            require(structure_findings(request, completion))
        self._num_completions += len(requests)
        try:
            for index in self._sample(lap, len(requests)):
                self._check(requests[index], completions[index])
            require(near_tie_findings(self._oracle, self._ledger))
        except OracleError as error:  # no engine is blamed for it
            raise NoRightAnswer(str(error)) from error

    def _sample(self, lap: int, num_requests: int) -> Sequence[int]:
        if self._sample_size is None or self._sample_size >= num_requests:
            return range(num_requests)
        rng = random.Random(self._sample_seed + lap)
        return rng.sample(range(num_requests), self._sample_size)

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
        return self._num_by_reference + self._num_scored > 0

    def as_dict(self) -> dict[str, int]:
        return {
            "num_completions": self._num_completions,
            "num_by_reference": self._num_by_reference,
            "num_scored": self._num_scored,
            "num_near_ties": self._ledger.num_near_ties,
            "sample_seed": self._sample_seed,
        }


class NoRightAnswer(OracleError):
    """Raised if there is no right answer while answers are judged: no fault of an engine."""


@contextmanager
def blaming(accuse: Callable[[str, bool], None]) -> Iterator[None]:
    """Passes what the engine raises inside the block to `accuse`, as text, and whether it is
    blameless: one that hangs may be slow and right, which is for the conformance tests, and one that
    refuses the model or these limits makes no claim.

    `KeyboardInterrupt` and `NoRightAnswer` are raised again.
    """
    try:
        yield
    except (KeyboardInterrupt, NoRightAnswer):
        raise
    except EngineHang as hang:
        accuse(f"{hang.what} (--engine-time-limit)", True)
    except UnsupportedModelError as error:
        accuse(str(error), True)
    except BrokenPromise as error:
        accuse(first_line(error.finding), False)
    except ConformanceFailure as error:
        accuse(first_line(error.failure.finding), False)
    except BaseException as error:  # asyncio's cancellation, for one, is no Exception
        accuse(f"the engine raised {type(error).__name__}: {error}", False)
