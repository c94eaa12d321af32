"""Many requests with one prompt, whose drawn tokens together have a known distribution."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from batchproof.api import Capability, Request, SamplingParams
from batchproof.oracle.distributions import flat_enough, min_p_of, top_p_of, top_p_within, two_tokens
from batchproof.oracle.oracle import Oracle


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal requests, but for their seeds."""

    name: str
    every: int  # one for each so many numbers
    cap: int
    sampling: SamplingParams | None
    has_seeds: bool = False

    def request(self, prompt: tuple[int, ...], number: int) -> Request:
        """Returns the request of this number."""
        asked = self.sampling
        if asked is not None and self.has_seeds:
            asked = replace(asked, seed=number)
        return Request(f"{self.name}-{number}", prompt, self.cap, sampling=asked)


def kinds_of_draws(
    oracle: Oracle,
    capabilities: AbstractSet[Capability],
    fields: AbstractSet[str],
    prompt: tuple[int, ...],
    num: int,
) -> list[Kind]:
    """Returns what to draw behind a prompt up to `num` times: one token, of the likeliest; one with
    other parameters and seeds; two that follow each other, which show draws that are not independent;
    and greedy ones beside them. Kinds that need other fields than these are left out."""
    has_seeds = Capability.SEEDED_SAMPLING in capabilities
    temperature, likeliest = flat_enough(oracle, prompt, num)
    nucleus = top_p_of(oracle, prompt, 2 * temperature)
    least = min_p_of(oracle, prompt, temperature, likeliest)
    within = top_p_within(oracle, prompt, temperature, likeliest)
    kinds = [
        Kind("top-k", 1, 1, SamplingParams(temperature, top_k=likeliest)),
        Kind("top-p", 4, 1, SamplingParams(2 * temperature, top_p=nucleus), has_seeds),
        Kind("min-p", 4, 1, SamplingParams(temperature, min_p=least)),
        Kind("both", 8, 1, SamplingParams(temperature, top_p=within, min_p=least)),
        Kind("greedy", 32, 2, None),
    ]
    tokens, even = two_tokens(oracle, prompt, num)
    kinds.append(Kind("pair", 2, 2, SamplingParams(even, allowed_token_ids=tokens), has_seeds))
    return [each for each in kinds if each.sampling is None or not each.sampling.beyond(fields)]


def interleaved(kinds: list[Kind], prompt: tuple[int, ...], numbers: range) -> Iterator[Request]:
    """Yields the requests of all kinds with these numbers, in turns."""
    for number in numbers:
        yield from (kind.request(prompt, number) for kind in kinds if number % kind.every == 0)
