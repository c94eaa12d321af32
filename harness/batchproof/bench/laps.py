"""What is asked in each lap: the same lengths, caps and shared prefixes, with tokens that nobody can
know before. Answers and prefixes that an engine kept from another lap, or worked out in advance, are of
no use to it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import replace

from batchproof.api import Request


class Laps:
    """One for all engines of a comparison. Lap 0 is the workload as it stands; every later one renames
    the tokens by a permutation that is drawn when the lap begins."""

    def __init__(self, requests: Sequence[Request], vocab_size: int) -> None:
        self._asked: dict[int, tuple[Request, ...]] = {0: tuple(requests)}
        self._vocab_size = vocab_size
        self.seeds: list[int] = []  # of laps 1, 2, ...: with them a lap can be asked again

    def __getitem__(self, lap: int) -> tuple[Request, ...]:
        while lap not in self._asked:
            self.seeds.append(secrets.randbits(32))
            self._asked[len(self.seeds)] = renamed(self._asked[0], self._vocab_size, self.seeds[-1])
        return self._asked[lap]


def renamed(requests: Sequence[Request], vocab_size: int, seed: int) -> tuple[Request, ...]:
    """Each token replaced by another, the same one everywhere."""
    names = list(range(vocab_size))
    random.Random(seed).shuffle(names)
    return tuple(
        replace(r, prompt_token_ids=tuple(names[token] for token in r.prompt_token_ids))
        for r in requests
    )
