"""The figures people quote, named and defined as in vLLM's `benchmark_serving`.

    request_throughput      completed requests / wall_s
    output_throughput       output tokens / wall_s
    total_token_throughput  (prompt + output tokens) / wall_s
    ttft    time to first token: from the start of the round to a request's first token
    tpot    time per output token: (latency - ttft) / (num_output_tokens - 1); none for one token
    itl     inter-token latency: every gap between a request's tokens, pooled; tokens that arrive
            together are one arrival
    e2el    end-to-end latency: from the start of the round to the last token

Throughputs are those of the median round; latencies pool all timed rounds. What an engine's interface
does not show is None, never 0. Only rounds whose answers were checked are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from batchproof.api import Request
from batchproof.bench.drive import Round

LATENCIES = ("ttft", "tpot", "itl", "e2el")
NUM_QUANTILES = 101


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request's latencies in milliseconds; None where undefined."""

    ttft: float | None
    tpot: float | None
    e2el: float | None
    itls: tuple[float, ...]

    @classmethod
    def of(cls, token_times_s: Sequence[float]) -> RequestTimes:
        """Returns the latencies for the seconds from arrival to each token."""
        ms = [1000 * seconds for seconds in token_times_s]
        if not ms:
            return cls(None, None, None, ())
        gaps = tuple(b - a for a, b in pairwise(sorted(set(ms))))
        tpot = (ms[-1] - ms[0]) / (len(ms) - 1) if len(ms) > 1 else None
        return cls(ms[0], tpot, ms[-1], gaps)


def measure(rounds: Sequence[Round], requests: Sequence[Request]) -> dict[str, Any]:
    """Returns all figures of one engine on one workload, in vLLM's names: times in ms, rates per
    second."""
    wall_s = median(each.wall_s for each in rounds)
    process_s = median(each.process_s for each in rounds)
    num_output = sum(len(completion.token_ids) for completion in rounds[0].completions)
    num_prompt = sum(len(request.prompt_token_ids) for request in requests)
    figures: dict[str, Any] = {
        "request_throughput": len(requests) / wall_s,
        "output_throughput": num_output / wall_s,
        "total_token_throughput": (num_prompt + num_output) / wall_s,
        "output_tokens_per_process_s": num_output / process_s,
        "num_output_tokens": num_output,
        "num_prompt_tokens": num_prompt,
    }
    for name, pooled in latencies(rounds).items():
        figures |= _summary(name, pooled)
    return figures


def latencies(rounds: Sequence[Round]) -> dict[str, list[float] | None]:
    """Returns each kind of latency in ms, pooled over all requests of all rounds, sorted; None where
    the interface does not show it."""
    times = _request_times(rounds)
    if times is None:
        return dict.fromkeys(LATENCIES)
    return {
        "ttft": _sorted(each.ttft for each in times),
        "tpot": _sorted(each.tpot for each in times),
        "itl": _sorted(gap for each in times for gap in each.itls),
        "e2el": _sorted(each.e2el for each in times),
    }


def _sorted(values: Iterable[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def distributions(rounds: Sequence[Round]) -> dict[str, list[float] | None]:
    """Returns at most 101 quantiles of each latency in ms, for pictures."""
    return {f"{name}_ms": _quantiles(values or ()) for name, values in latencies(rounds).items()}


def _quantiles(values: Sequence[float]) -> list[float] | None:
    if len(values) <= NUM_QUANTILES:
        return list(values) or None
    return [float(each) for each in np.quantile(values, np.linspace(0, 1, NUM_QUANTILES))]


def _request_times(rounds: Sequence[Round]) -> list[RequestTimes] | None:
    per_round = [each.token_times_s for each in rounds]
    if any(times is None for times in per_round):
        return None
    return [RequestTimes.of(own) for times in per_round for own in times or ()]


def _summary(name: str, values: Sequence[float] | None) -> dict[str, float | None]:
    keys = (f"mean_{name}_ms", f"median_{name}_ms", f"p90_{name}_ms", f"p99_{name}_ms")
    if not values:
        return dict.fromkeys(keys)
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return dict(zip(keys, map(float, (np.mean(values), p50, p90, p99)), strict=True))
