"""The requests of each round: the same lengths, caps and shared prefixes, with tokens that cannot be
known before. Answers or prefixes that an engine kept or computed in advance do not help it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import replace

from batchproof.api import Request
from batchproof.bench.arrivals import AT_ONCE, Arrivals


class Laps:
    """The requests of all rounds of one measurement, and when they come. Round 0 is the workload
    itself; each later one renames its tokens by a random permutation drawn when the round begins.

    A lap has a round for each of `arrivals`, in that order; round 0 has `first`.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        vocab_size: int,
        arrivals: Sequence[Arrivals] = (AT_ONCE,),
        first: Arrivals = AT_ONCE,
    ) -> None:
        self._asked: dict[int, tuple[Request, ...]] = {0: tuple(requests)}
        self._vocab_size = vocab_size
        self._arrivals = tuple(arrivals)
        self._first = first
        self.seeds: list[int] = []  # of rounds 1, 2, ...: they reproduce a round

    @property
    def num_rounds(self) -> int:
        """The number of rounds in a lap."""
        return len(self._arrivals)

    def arrivals(self, number: int) -> Arrivals:
        """Returns when the requests of a round come."""
        return self._arrivals[(number - 1) % self.num_rounds] if number else self._first

    def is_forward(self, number: int) -> bool:
        """Returns whether engines take turns in their order, not in reverse: this alternates from round
        to round, and from lap to lap for each of the arrivals."""
        lap, index = divmod(number - 1, self.num_rounds)
        return (lap + index) % 2 == 0

    def __getitem__(self, number: int) -> tuple[Request, ...]:
        while number not in self._asked:
            self.seeds.append(secrets.randbits(32))
            self._asked[len(self.seeds)] = renamed(self._asked[0], self._vocab_size, self.seeds[-1])
        return self._asked[number]


def renamed(requests: Sequence[Request], vocab_size: int, seed: int) -> tuple[Request, ...]:
    """Returns the requests with every token replaced through one permutation of the vocabulary."""
    names = list(range(vocab_size))
    random.Random(seed).shuffle(names)
    return tuple(
        replace(r, prompt_token_ids=tuple(names[token] for token in r.prompt_token_ids))
        for r in requests
    )
