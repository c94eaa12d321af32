"""The mistakes that engines make, each as an edit of what is fed and who sees whom.

A mistake of the list is named only if the reference, making it, gives the answer the engine gave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from batchproof.api import EngineConfig
from batchproof.diagnosis.tape import Tape
from batchproof.diagnosis.twin import View
from batchproof.findings.causes import Cause


@dataclass(frozen=True, slots=True)
class Mistake:
    """A cause, in words an engineer can act on, and what would be computed under it."""

    cause: Cause
    text: str
    view: View
    is_rounding: bool = False  # compared by size: rounding does not come out the same twice


@dataclass(frozen=True, slots=True)
class Suspect:
    """The answer to explain: sequence `seq` of the tape, and the honest view of it."""

    tape: Tape
    seq: int
    honest: View
    window: int | None
    config: EngineConfig
    is_continuous: bool  # by its capabilities: then it has no padded waves

    @property
    def is_own(self) -> Tensor:
        return self.tape.seq == self.seq

    @property
    def name(self) -> str:
        return self.tape.sequences[self.seq].request.request_id

    def seeing(self, cause: Cause, text: str, visible: Tensor) -> Mistake:
        return Mistake(cause, text, replace(self.honest, visible=visible))

    def at(self, cause: Cause, text: str, position: Tensor) -> Mistake:
        return Mistake(cause, text, replace(self.honest, position=position))

    def fed(self, cause: Cause, text: str, token: Tensor) -> Mistake:
        return Mistake(cause, text, replace(self.honest, token=token))


def distance(tape: Tape) -> Tensor:
    """Of query from key, in places of their sequences."""
    return tape.index[:, None] - tape.index


def among_own(tape: Tape) -> Tensor:
    return (tape.seq[:, None] == tape.seq) & (tape.epoch[:, None] == tape.epoch)


def fed_by_then(tape: Tape) -> Tensor:
    """Key is cached, or fed in the same step as the query."""
    return tape.step <= tape.step[:, None]


def of_first_row(tape: Tape, column: Tensor, pick: str) -> Tensor:
    """Per cell: the `column` of the first, last, longest or shortest row of its step."""
    found = torch.zeros_like(column)
    for step in tape.step.unique():
        here = tape.step == step
        rows, values = tape.row[here], column[here]
        chosen = {
            "first": values[rows.argmin()],
            "last": values[rows.argmax()],
            "longest": values.max(),
            "shortest": values.min(),
        }[pick]
        found[here] = chosen
    return found
