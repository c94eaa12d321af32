"""The figures people quote, named as in vLLM's `benchmark_serving` and defined in docs/benchmarks.md.

Only rounds whose answers were checked are measured. `schedule_figures` says what the scheduler did with
the slots: a pure function of a trace, without tensors or a clock.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from batchproof.api import Request, StepRecord
from batchproof.bench.drive import Round

LATENCIES = ("ttft", "tpot", "itl", "e2el")


def measure(rounds: Sequence[Round], requests: Sequence[Request]) -> dict[str, Any]:
    """Returns all figures of one engine on one workload, in vLLM's names: ms, and rates per second."""
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
    for name, pooled in _latencies_ms(rounds).items():
        keys = [f"{kind}_{name}_ms" for kind in ("mean", "median", "p90", "p99")]
        values = [np.mean(pooled), *np.percentile(pooled, [50, 90, 99])] if pooled else [None] * 4
        figures |= zip(keys, [None if each is None else float(each) for each in values], strict=True)
    return figures


def _latencies_ms(rounds: Sequence[Round]) -> dict[str, list[float]]:
    pooled: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for token_times_s in (own for each in rounds for own in each.token_times_s or ()):
        ms = [1000 * seconds for seconds in token_times_s]
        if ms:
            pooled["ttft"].append(ms[0])
            pooled["e2el"].append(ms[-1])
            pooled["itl"] += (b - a for a, b in pairwise(sorted(set(ms))))
        if len(ms) > 1:
            pooled["tpot"].append((ms[-1] - ms[0]) / (len(ms) - 1))
    return {name: sorted(values) for name, values in pooled.items()}


def schedule_figures(trace: Sequence[StepRecord], num_slots: int) -> dict[str, Any]:
    """Returns steps, batch size and occupancy of one round; None without a trace."""
    num_rows = sum(len(record.rows) for record in trace)
    return {
        "num_steps": len(trace) or None,
        "mean_batch": num_rows / len(trace) if trace else None,
        "occupancy": num_rows / (len(trace) * num_slots) if trace else None,
    }
