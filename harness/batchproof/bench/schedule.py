"""What the scheduler did with the slots: pure functions of a trace, without tensors or a clock.

`fed` counts the token positions that the model computed, pads and idle rows included, as `forwards.py`
observes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from batchproof.api import Request, StepRecord
from batchproof.run.timeline import assign_slots, is_prefill

MAX_STEPS_KEPT = 5000  # longer runs keep no step-by-step picture


@dataclass(frozen=True, slots=True)
class Forward:
    """The shape of the token ids of one forward pass: `(batch, length)`."""

    batch: int
    length: int

    @property
    def num_tokens(self) -> int:
        """Token positions computed, pads included."""
        return self.batch * self.length


def figures(
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


def barriers(trace: Sequence[StepRecord]) -> list[int]:
    """Returns the steps after which a whole wave had ended: static batching. Empty for an engine that
    ever admits a sequence while another one is running."""
    running: set[str] = set()
    found = []
    for step, record in enumerate(trace):
        if record.admitted and step:
            if running:
                return []
            found.append(step - 1)
        running |= set(record.admitted)
        running -= {*record.finished, *record.preempted}
    return found


def timeline(
    trace: Sequence[StepRecord],
    forwards: Sequence[Forward],
    num_slots: int,
    requests: Sequence[Request],
) -> dict[str, Any] | None:
    """Returns every stay of a request in a slot, ready for JSON; None without a trace or for one longer
    than `MAX_STEPS_KEPT`.

    `prefill` holds, for each step in which the prompt was fed, the real tokens and those computed for
    the row, pads included.
    """
    if not trace or len(trace) > MAX_STEPS_KEPT:
        return None
    index_of = {request.request_id: index for index, request in enumerate(requests)}
    prompt_lens = {r.request_id: len(r.prompt_token_ids) for r in requests}
    padded = _padded_lens(trace, forwards)
    stays: dict[tuple[int, str, int], dict[str, Any]] = {}
    began: dict[str, int] = {}
    for step, (record, slots) in enumerate(zip(trace, assign_slots(trace, num_slots), strict=True)):
        began |= dict.fromkeys(record.admitted, step)
        for row in record.rows:
            slot, index = slots[row.request_id], index_of[row.request_id]
            new = {"slot": slot, "request": index, "start": step, "prefill": [], "decodes": 0}
            stay = stays.setdefault((slot, row.request_id, began[row.request_id]), new)
            if is_prefill(row, prompt_lens[row.request_id]):
                stay["prefill"].append([row.query_len, padded[step] or row.query_len])
            else:
                stay["decodes"] += 1
    return {
        "num_slots": num_slots,
        "num_steps": len(trace),
        "stays": list(stays.values()),
        "barriers": barriers(trace),
    }


def _padded_lens(trace: Sequence[StepRecord], forwards: Sequence[Forward]) -> Sequence[int | None]:
    """Returns per step the length that all rows were padded to; None where rows were packed or passes
    do not match steps."""
    if len(forwards) != len(trace):
        return [None] * len(trace)
    return [
        forward.length if forward.batch > 1 and forward.batch >= len(record.rows) else None
        for forward, record in zip(forwards, trace, strict=True)
    ]


def composition(
    trace: Sequence[StepRecord], num_slots: int, prompt_lens: Mapping[str, int]
) -> list[list[int]] | None:
    """Returns per step: prompt tokens fed, decode rows, idle slots, requests waiting."""
    if not trace or len(trace) > MAX_STEPS_KEPT:
        return None
    steps = []
    for record in trace:
        prefills = [row for row in record.rows if is_prefill(row, prompt_lens[row.request_id])]
        num_prefill_tokens = sum(row.query_len for row in prefills)
        num_decodes = len(record.rows) - len(prefills)
        idle = num_slots - len(record.rows)
        steps.append([num_prefill_tokens, num_decodes, idle, len(record.waiting)])
    return steps


def max_speedup_over_static(
    prompt_lens: Sequence[int], output_lens: Sequence[int], num_slots: int
) -> dict[str, float]:
    """Returns the most that continuous batching can gain over static waves on this workload.

    `by_steps` assumes that every step costs the same however many rows it has: steps of all waves (each
    as long as its longest answer) over the steps that full slots need. `by_rows` assumes a cost
    proportional to the tokens computed: padded and idle positions included, over the real ones.
    """
    num_steps = num_padded = 0
    for start in range(0, len(output_lens), num_slots):
        prompts = prompt_lens[start : start + num_slots]
        outputs = output_lens[start : start + num_slots]
        num_steps += max(outputs)
        num_padded += len(outputs) * (max(prompts) + max(outputs) - 1)
    num_least = max(ceil(sum(output_lens) / num_slots), *output_lens)
    num_real = sum(prompt_lens) + sum(output_lens) - len(output_lens)
    return {"by_steps": num_steps / num_least, "by_rows": num_padded / num_real}
