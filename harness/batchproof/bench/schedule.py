"""What the scheduler did with the slots: pure functions of a trace, without tensors or a clock.

`fed` counts the token positions that the model computed, pads and idle rows included, as a hook on
the model observes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchproof.api import Request, StepRecord


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
