"""The requests of each lap: the same lengths, caps and shared prefixes, with tokens that cannot be
known before. Answers or prefixes that an engine kept or computed in advance do not help it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import replace

from batchproof.api import Request


class Laps:
    """The requests of all laps of one comparison. Lap 0 is the workload itself; each later lap renames
    its tokens by a random permutation drawn when the lap begins."""

    def __init__(self, requests: Sequence[Request], vocab_size: int) -> None:
        self._asked: dict[int, tuple[Request, ...]] = {0: tuple(requests)}
        self._vocab_size = vocab_size
        self.seeds: list[int] = []  # of laps 1, 2, ...: they reproduce a lap

    def __getitem__(self, lap: int) -> tuple[Request, ...]:
        while lap not in self._asked:
            self.seeds.append(secrets.randbits(32))
            self._asked[len(self.seeds)] = renamed(self._asked[0], self._vocab_size, self.seeds[-1])
        return self._asked[lap]


def renamed(requests: Sequence[Request], vocab_size: int, seed: int) -> tuple[Request, ...]:
    """Returns the requests with every token replaced through one permutation of the vocabulary."""
    names = list(range(vocab_size))
    random.Random(seed).shuffle(names)
    return tuple(
        replace(r, prompt_token_ids=tuple(names[token] for token in r.prompt_token_ids))
        for r in requests
    )
