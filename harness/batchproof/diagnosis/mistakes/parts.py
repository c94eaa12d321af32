"""Mistakes of kernels that leave a part of the model out in some steps: sinks, or a clamp."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.counterfactual import Mistake, Suspect
from batchproof.findings.causes import Cause
from batchproof.models.catalogue import ModelUnderTest
from batchproof.models.lacking_parts import PARTS, has_part

CAUSES = {  # where the steps tell no other
    "sinks": Cause.MASK,
    "limit": Cause.SHAPES,
    "attn_logit_softcapping": Cause.MASK,
}
SIZES = (2, 4, 8, 16, 32)  # tokens of a step from which on another kernel may run


def part_mistakes(subject: ModelUnderTest, suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which a part that the model has is left out in steps of a kind."""
    for part, cause in CAUSES.items():
        for what, (of_steps, cells) in _steps(suspect).items() if has_part(subject.exact, part) else ():
            view = replace(suspect.honest, part=part, without=cells)
            yield Mistake(of_steps or cause, f"{what} computes without {PARTS[part].text}", view)


def _steps(suspect: Suspect) -> dict[str, tuple[Cause | None, Tensor]]:
    """Returns sets of cells, bool `(num_cells,)`, by the steps that they are."""
    table = suspect.table
    num_tokens = table.step.bincount()[table.step]
    is_chunk = (table.context_len > 0) & (table.query_len > 1)
    kinds: dict[str, tuple[Cause | None, Tensor]] = {
        "every step": (None, torch.ones_like(is_chunk)),
        "a step of decodes alone": (None, ~_any_of_step(table.step, ~table.is_decode())),
        "a step with a prompt": (None, _any_of_step(table.step, ~table.is_decode())),
        "a step with a later chunk": (Cause.CHUNK, _any_of_step(table.step, is_chunk)),
    }
    for size in SIZES:
        kinds[f"a step of {size} tokens or more"] = (Cause.SHAPES, num_tokens >= size)
    return kinds


def _any_of_step(step: Tensor, flags: Tensor) -> Tensor:
    """Returns for each cell whether one of its step is flagged."""
    return (step.bincount(flags.double()) > 0)[step]
