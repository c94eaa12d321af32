"""When the requests of a round come: all at once, in open loop at a rate, or in closed loop.

Open loop: request i is due at a time drawn before, whatever the engine does. Without `burstiness` gaps
are exponential with the mean 1 / rate, which makes a Poisson process. With it they follow a gamma
distribution of that shape, as in vLLM's `--burstiness`, and are scaled so that the last request comes
exactly (n - 1) / rate after the first: a short round offers the rate asked for, too. The coefficient of
variation of the gaps is 1 / sqrt(burstiness): below 1 requests come in bursts, 1 is Poisson, above 1
they are more regular.

Closed loop: `concurrency` users; each submits a request when the one before has ended.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from batchproof.validation.values import require


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrivals of one round. At most one of the two is given; all come at once without."""

    due_s: tuple[float, ...] | None = None  # of each request, from the start, ascending
    concurrency: int | None = None  # requests in flight at any time

    @property
    def is_at_once(self) -> bool:
        """Whether all requests come at the start."""
        return self.due_s is None and self.concurrency is None

    def known_due_s(self, num_requests: int) -> list[float]:
        """Returns when requests are due, as far as that is known at the start."""
        if self.due_s is not None:
            return list(self.due_s)
        return [0.0] * min(num_requests, self.concurrency or num_requests)


AT_ONCE = Arrivals()


def check_arrivals(
    num_requests: int, rate: float | None, burstiness: float | None, concurrency: int | None
) -> None:
    """Raises `InvalidValueError` for values out of range or that exclude each other."""
    if rate is not None:
        require(0 < rate < math.inf, "arrival_rate", f"{rate:g}", "above 0 and finite")
    if burstiness is not None:
        require(0 < burstiness < math.inf, "burstiness", f"{burstiness:g}", "above 0 and finite")
        rule = "left out where requests have no arrival_rate, for it is the shape of their gaps"
        require(rate is not None, "burstiness", f"{burstiness:g}", rule)
    if concurrency is not None:
        rule = f"1 to {num_requests}, the number of requests"
        require(1 <= concurrency <= num_requests, "concurrency", concurrency, rule)
        rule = "left out beside an arrival_rate: requests come at a rate, or when others end"
        require(rate is None, "concurrency", concurrency, rule)


def drawn_arrivals(
    rng: random.Random, num_requests: int, rate: float | None, burstiness: float | None
) -> tuple[float, ...] | None:
    """Returns when each request is due, the first at 0; None without a rate. In whole microseconds,
    because the last bit of a logarithm depends on the C library.

    Gaps are proportional to 1 / rate: one seed gives one pattern, faster or slower.
    """
    if rate is None:
        return None
    if burstiness is None:
        due_s = [0.0]
        while len(due_s) < num_requests:
            due_s.append(round(due_s[-1] + rng.expovariate(rate), 6))
        return tuple(due_s)
    gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(num_requests - 1)]
    scale = len(gaps) / (rate * sum(gaps)) if gaps else 0.0
    return tuple(round(scale * each, 6) for each in accumulate(gaps, initial=0.0))
