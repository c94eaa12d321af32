"""Settings in which the kept request is served, and seeded contents for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from batchproof.api import EngineConfig, Request
from batchproof.errors import UsageError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.workload.workloads import Workload

KEPT = "kept"  # the ids of what is compared begin with it; the answers are joined in order
NEIGHBOUR = "neighbour"  # the ids of the requests whose contents do not matter begin with it

CAP = 8  # new tokens of the kept request
LENGTHS = (31, 7, 18, 25, 12, 29, 9, 21)  # tokens of its prompt in each comparison
NEIGHBOUR_LENGTHS = (12, 3, 25, 8, 17)  # tokens, in turn
LONGEST = max(*LENGTHS, *NEIGHBOUR_LENGTHS) + 2 * CAP
MAX_NUM_SEQS = 17  # the largest batch: 16 others


@dataclass(frozen=True)
class Setting:
    """Calls to one fresh engine. The answers of the requests named `KEPT...` are joined in order."""

    calls: tuple[Workload, ...]
    num_threads: int = 1


@dataclass(frozen=True)
class Comparison:
    """A base setting, and a changed one that may need the tokens that the base answered."""

    prompt: tuple[int, ...]  # of the kept request
    base: Setting
    changed: Callable[[tuple[int, ...]], Setting]


class Contents:
    """Seeded prompts for one model; the same seed gives the same prompts."""

    def __init__(self, subject: ModelUnderTest, seed: int) -> None:
        """Raises `UsageError` if the model's context is too short for the workloads."""
        if subject.context_len < LONGEST:
            raise UsageError(
                f"model {subject.name!r} has a context of {subject.context_len} tokens, but must hold "
                f"at least {LONGEST} to be measured"
            )
        self._rng = random.Random(seed)
        self._alphabet = [each for each in range(subject.vocab_size) if subject.has_answer((each,))]

    def prompt(self, length: int) -> tuple[int, ...]:
        """Returns the next prompt of this many tokens."""
        return tuple(self._rng.choices(self._alphabet, k=length))

    def kept(self, length: int) -> Request:
        """Returns a kept request."""
        return Request(KEPT, self.prompt(length), CAP)

    def neighbours(self, count: int, cap: int = CAP) -> list[Request]:
        """Returns others of different lengths."""
        lengths = [NEIGHBOUR_LENGTHS[i % len(NEIGHBOUR_LENGTHS)] for i in range(count)]
        return [
            Request(f"{NEIGHBOUR}-{i}", self.prompt(length), cap) for i, length in enumerate(lengths)
        ]

    def rewritten(self, setting: Setting) -> Setting:
        """Returns the setting with other contents of all neighbours, of the same shapes.

        A neighbour that is in several calls gets the same new prompt in each.
        """
        fresh: dict[tuple[int, ...], tuple[int, ...]] = {}

        def changed(request: Request) -> Request:
            old = request.prompt_token_ids
            if not request.request_id.startswith(NEIGHBOUR):
                return request
            return replace(request, prompt_token_ids=fresh.setdefault(old, self._other(old)))

        calls = tuple(call.with_requests([*map(changed, call.requests)]) for call in setting.calls)
        return replace(setting, calls=calls)

    def _other(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a prompt of that length with another token at every place."""
        shift = self._rng.randrange(1, len(self._alphabet))
        place = {token: index for index, token in enumerate(self._alphabet)}
        return tuple(self._alphabet[(place[token] + shift) % len(place)] for token in prompt)

    def with_last_token_changed(self, request: Request) -> Request:
        """Returns the request with another last token of its prompt."""
        *start, last = request.prompt_token_ids
        return replace(request, prompt_token_ids=(*start, *self._other((last,))))


def one_call(requests: Sequence[Request], **config: object) -> Setting:
    """Returns the setting of one call of `generate`, with these fields of the config."""
    return Setting((call(requests, **config),))


def call(requests: Sequence[Request], **config: object) -> Workload:
    """Returns one call of `generate`, with these fields of the config. Logits are asked for."""
    limits = EngineConfig(max_num_seqs=MAX_NUM_SEQS, return_logits=True)
    return Workload(tuple(requests), limits).with_config(**config)
