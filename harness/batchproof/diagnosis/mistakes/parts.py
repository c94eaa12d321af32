"""Mistakes of kernels that leave a part of the model out in some steps: sinks, or a clamp."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.counterfactual import Mistake, Suspect
from batchproof.findings.causes import Cause
from batchproof.models.catalogue import ModelUnderTest
from batchproof.models.lacking_parts import Part

PARTS = {  # and the cause, where the steps tell no other
    "sinks": (Part("sinks", -1e4), Cause.MASK),
    "the clamp of its experts' gates": (Part("limit", 1e4), Cause.SHAPES),
    "the cap on scores": (Part("attn_logit_softcapping", 1e6), Cause.MASK),
}
SIZES = (2, 4, 8, 16, 32)  # tokens of a step from which on another kernel may run


def part_mistakes(subject: ModelUnderTest, suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which a part that the model has is left out in steps of a kind."""
    for name, (part, cause) in PARTS.items():
        for what, (of_steps, cells) in _steps(suspect).items() if part.owners(subject.exact) else ():
            view = replace(suspect.honest, part=part, without=cells)
            yield Mistake(of_steps or cause, f"{what} computes without {name}", view)


def _steps(suspect: Suspect) -> dict[str, tuple[Cause | None, Tensor]]:
    """Returns sets of cells, bool `(num_cells,)`, by the steps that they are."""
    table = suspect.table
    num_tokens = table.step.bincount()[table.step]
    has_prompt = any_of_step(table.step, ~table.is_decode())
    is_chunk = (table.context_len > 0) & (table.query_len > 1)
    kinds: dict[str, tuple[Cause | None, Tensor]] = {
        "every step": (None, torch.ones_like(is_chunk)),
        "a step of decodes alone": (None, ~has_prompt),
        "a step with a prompt": (None, has_prompt),
        "a step with a later chunk": (Cause.CHUNK, any_of_step(table.step, is_chunk)),
    }
    for size in SIZES:
        kinds[f"a step of {size} tokens or more"] = (Cause.SHAPES, num_tokens >= size)
    return kinds


def any_of_step(step: Tensor, flags: Tensor) -> Tensor:
    """Returns for each cell whether one of its step is flagged."""
    return (step.bincount(flags.double()) > 0)[step]
