"""Whether a figure is the engine's or the client's: what the client did in a round, call by call.

An engine in this process computes in the client's thread. A request that is due during a call is late
by the rest of the call: that delay is the engine's. What is left is the client's own: code between two
calls, and sleep that lasts too long. A server works beside the client and takes requests at any time:
there all lateness is the client's, and so is the CPU time of this process.

    own_share    an engine here: the client's own time / (wall time - sleep)
                 a server: CPU time of this process / wall time
    delay_share  sum of the client's own delays / sum of the times to first token

A client above one of the limits is saturated: it measures itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Seconds: TypeAlias = NDArray[np.float64]

MOST_OWN_SHARE = 0.05  # it adds as much to each step
MOST_CPU_SHARE = 0.5  # a thread that is busier makes its work queue
MOST_DELAY_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class ClientLog:
    """One round of a stepped engine, in seconds since it began."""

    due_s: tuple[float, ...]  # of each request
    submitted_s: tuple[float, ...]  # when `add` was called
    calls_s: tuple[tuple[float, float], ...]  # of `add` and `step`: begin and end, ascending
    slept_s: float
    cpu_s: float  # CPU time of this process
    is_beside: bool  # the engine works while the client does not call it

    @property
    def in_calls_s(self) -> float:
        """Seconds within the engine's code."""
        return sum(end - begin for begin, end in self.calls_s)

    def own_delays_s(self) -> Seconds:
        """Returns for each request how much later it was submitted than due, the engine's part left
        out."""
        due, submitted = np.array(self.due_s), np.array(self.submitted_s)
        late = submitted - due
        if not self.is_beside:
            late -= self._in_calls_until(submitted) - self._in_calls_until(due)
        return np.maximum(late, 0.0)

    def _in_calls_until(self, times: Seconds) -> Seconds:
        """Returns the seconds within calls from the start to each time."""
        calls = np.array(self.calls_s).reshape(-1, 2)
        until_end = np.cumsum(calls[:, 1] - calls[:, 0])
        until_begin = np.concatenate(([0.0], until_end[:-1]))
        known = np.column_stack((until_begin, until_end)).ravel()
        return np.asarray(np.interp(times, calls.ravel(), known), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """The client over all rounds at one load."""

    own_share: float
    delay_share: float
    p99_late_ms: float  # from due to submitted, the engine's part included
    p99_own_delay_ms: float
    most_own_share: float

    @property
    def saturation(self) -> str | None:
        """Why the client is saturated, in words; None if it is not."""
        what = "the CPU time of this process" if self.most_own_share == MOST_CPU_SHARE else "its code"
        for share, most, words in (
            (self.own_share, self.most_own_share, f"{what} took {self.own_share:.0%} of the time"),
            (
                self.delay_share,
                MOST_DELAY_SHARE,
                f"its own delays are {self.delay_share:.0%} of the times to first token",
            ),
        ):
            if share > most:
                return f"the load generator is saturated: {words} (limit {most:.0%})"
        return None


def client_figures(
    logs: Sequence[ClientLog], walls_s: Sequence[float], ttfts_ms: Sequence[float]
) -> ClientFigures:
    """Returns the figures of rounds of one engine; `walls_s` are their times, `ttfts_ms` all times to
    first token."""
    delays = np.concatenate([log.own_delays_s() for log in logs])
    late = np.concatenate([np.subtract(log.submitted_s, log.due_s) for log in logs])
    slept = sum(log.slept_s for log in logs)
    if logs[0].is_beside:
        own_share, most = sum(log.cpu_s for log in logs) / sum(walls_s), MOST_CPU_SHARE
    else:
        awake = sum(walls_s) - slept
        own_share, most = 1 - sum(log.in_calls_s for log in logs) / awake, MOST_OWN_SHARE
    p99_late, p99_own = (1000 * float(np.percentile(each, 99)) for each in (late, delays))
    delay_share = 1000 * float(delays.sum()) / sum(ttfts_ms)
    return ClientFigures(own_share, delay_share, p99_late, p99_own, most)
