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

`schedule_figures` says what the scheduler did with the slots: a pure function of a trace, without
tensors or a clock. `fed` counts the token positions that the model computed, pads and idle rows
included, as a hook on the model observes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from batchproof.api import Request, StepRecord
from batchproof.bench.drive import Round

LATENCIES = ("ttft", "tpot", "itl", "e2el")


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


@dataclass(frozen=True, slots=True)
class Forward:
    """The shape of the token ids of one forward pass: `(batch, length)`."""

    batch: int
    length: int

    @property
    def num_tokens(self) -> int:
        """Token positions computed, pads included."""
        return self.batch * self.length


def schedule_figures(
    trace: Sequence[StepRecord],
    forwards: Sequence[Forward],
    num_slots: int,
    requests: Sequence[Request],
    output_lens: Sequence[int],
    unseen: str | None = None,
) -> dict[str, Any]:
    """Returns steps, batch size, occupancy and waste of one round; None where neither trace nor hook
    shows it.

    `unseen` says why forward passes may be missing; a contradiction between passes and trace is
    reported in the same field, `why_no_waste`.
    """
    num_needed = sum(
        len(request.prompt_token_ids) + num_output - 1
        for request, num_output in zip(requests, output_lens, strict=True)
    )
    num_rows = sum(len(record.rows) for record in trace)
    num_steps = len(trace) or len(forwards) or None
    num_fed = sum(forward.num_tokens for forward in forwards)
    num_real = sum(row.query_len for record in trace for row in record.rows) or num_needed
    if unseen is None and len(forwards) < len(trace):
        unseen = f"{len(forwards):,} forward passes were seen in {len(trace):,} steps"
    elif unseen is None and num_fed < num_real:
        unseen = f"{num_fed:,} tokens were seen in forward passes, but {num_real:,} were fed"
    return {
        "num_steps": num_steps,
        "mean_batch": num_rows / len(trace) if trace else None,
        "occupancy": num_rows / (len(trace) * num_slots) if trace else None,
        "num_fed_tokens": None if unseen else num_fed,
        "num_needed_tokens": num_needed,
        "padding_waste": None if unseen else 1 - num_real / num_fed,
        "why_no_waste": unseen,
    }
