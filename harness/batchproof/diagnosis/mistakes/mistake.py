"""Mistakes that engines make: each changes what is fed, or which keys a query sees.

A mistake is named only if the reference, making it, gives the answer that the engine gave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from batchproof.api import EngineConfig
from batchproof.diagnosis.cell_table import CellTable
from batchproof.diagnosis.counterfactual import View
from batchproof.findings.causes import Cause

PICKS = ("first", "last", "longest", "shortest")


@dataclass(frozen=True, slots=True)
class Mistake:
    """A cause, in words an engineer can act on, and what is computed under it."""

    cause: Cause
    text: str
    view: View
    is_rounding: bool = False  # compared by size, since rounding depends on the order of sums


@dataclass(frozen=True, slots=True)
class Suspect:
    """The answer to explain: sequence `seq` of the table, and the right view of it."""

    table: CellTable
    seq: int
    honest: View
    window: int | None
    config: EngineConfig
    is_continuous: bool  # continuous batching, by its capabilities: no padded waves

    @property
    def is_own(self) -> Tensor:
        """Whether each cell is of this sequence, bool `(num_cells,)`."""
        return self.table.seq == self.seq

    def mistake(self, cause: Cause, text: str, **changes: Any) -> Mistake:
        """Returns a mistake that changes these fields of the right view."""
        return Mistake(cause, text, replace(self.honest, **changes))


def of_picked_row(table: CellTable, column: Tensor, pick: str) -> Tensor:
    """Returns for each cell the value of `column` in one row of its step, picked as in `PICKS`,
    `(num_cells,)`."""
    found = torch.zeros_like(column)
    for step in table.step.unique():
        here = table.step == step
        rows, values = table.row[here], column[here]
        found[here] = {
            "first": values[rows.argmin()],
            "last": values[rows.argmax()],
            "longest": values.max(),
            "shortest": values.min(),
        }[pick]
    return found
