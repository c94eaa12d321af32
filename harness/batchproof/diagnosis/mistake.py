"""Mistakes that engines make: each changes what is fed, or which keys a query sees.

A mistake is named only if the reference, making it, gives the answer that the engine gave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from batchproof.api import EngineConfig
from batchproof.diagnosis.cell_table import CellTable
from batchproof.diagnosis.counterfactual import View
from batchproof.findings.causes import Cause


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

    @property
    def name(self) -> str:
        """The id of the request."""
        return self.table.sequences[self.seq].request.request_id

    def seeing(self, cause: Cause, text: str, visible: Tensor) -> Mistake:
        """Returns a mistake of the mask: `visible` is bool `(query cell, key cell)`."""
        return Mistake(cause, text, replace(self.honest, visible=visible))

    def at(self, cause: Cause, text: str, position: Tensor) -> Mistake:
        """Returns a mistake of the positions: `position` is int64 `(num_cells,)`."""
        return Mistake(cause, text, replace(self.honest, position=position))

    def fed(self, cause: Cause, text: str, token: Tensor) -> Mistake:
        """Returns a mistake of the fed tokens: `token` is int64 `(num_cells,)`."""
        return Mistake(cause, text, replace(self.honest, token=token))


def distance(table: CellTable) -> Tensor:
    """Returns the distance of each query from each key in their sequences, int64 `(query, key)`."""
    return table.index[:, None] - table.index


def among_own(table: CellTable) -> Tensor:
    """Returns whether query and key are of one sequence and epoch, bool `(query, key)`."""
    return (table.seq[:, None] == table.seq) & (table.epoch[:, None] == table.epoch)


def fed_by_then(table: CellTable) -> Tensor:
    """Returns whether the key is cached, or fed in the same step as the query, bool `(query, key)`."""
    return table.step <= table.step[:, None]


def of_first_row(table: CellTable, column: Tensor, pick: str) -> Tensor:
    """Returns for each cell the value of `column` in its step's first, last, longest or shortest row,
    `(num_cells,)`."""
    found = torch.zeros_like(column)
    for step in table.step.unique():
        here = table.step == step
        rows, values = table.row[here], column[here]
        chosen = {
            "first": values[rows.argmin()],
            "last": values[rows.argmax()],
            "longest": values.max(),
            "shortest": values.min(),
        }[pick]
        found[here] = chosen
    return found
