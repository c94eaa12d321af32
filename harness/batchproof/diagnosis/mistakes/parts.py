"""Mistakes of kernels that leave a part of the model out in some steps, or of a cache that keeps no
rotated keys."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from batchproof.diagnosis.counterfactual import CellTable, Edit, Mistake, Suspect
from batchproof.diagnosis.mistakes.storage import kept_as, places_of
from batchproof.findings.causes import Cause
from batchproof.models.catalogue import ModelUnderTest
from batchproof.models.lacking_parts import OwnExperts, Part, lacking

PARTS = {  # and the cause, where the steps tell no other
    "sinks": (Part("sinks", -1e4), Cause.MASK),
    "the clamp of its experts' gates": (Part("limit", 1e4), Cause.SHAPES),
    "the cap on scores": (Part("attn_logit_softcapping", 1e6), Cause.MASK),
}
SIZES = (2, 4, 8, 16, 32)  # tokens of a step from which on another kernel may run


def part_mistakes(subject: ModelUnderTest, suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which a part that the model has is left out in steps of a kind."""
    found = {name: each for name, each in PARTS.items() if each[0].owners(subject.exact)}
    for name, (part, cause) in found.items():
        for what, (of_steps, cells) in cells_by_step(suspect.table).items():
            edit = Edit(cells, partial(lacking, part=part))
            yield suspect.mistake(of_steps or cause, f"{what} computes without {name}", edit=edit)
    width = getattr(subject.exact.config.get_text_config(), "qk_nope_head_dim", None)
    if width is not None:  # of latent attention, whose cache has the rest of a key beside the latent

        def without_rotated(keys: Tensor) -> Tensor:
            return pad(keys[..., :width], (0, keys.shape[-1] - width))

        for what, (cause, cells) in places_of(suspect.table, suspect.config.block_size).items():
            view = kept_as(suspect, cells, held=without_rotated, are_values_kept=True)
            yield Mistake(cause, f"{what} is stored without its rotated part", view)


def expert_mistakes(subject: ModelUnderTest, suspect: Suspect) -> Iterator[Mistake]:
    """Yields the mistake in which rows of decodes that joined later are routed as pads."""
    part = OwnExperts()
    if part.owners(subject.exact):
        edit = Edit(_joined(suspect.table), partial(lacking, part=part))
        text = "rows that were not in the last step of decodes have the experts of its pads"
        yield suspect.mistake(Cause.STALE, text, edit=edit)


def _joined(table: CellTable) -> Tensor:
    """Returns the cells of steps of decodes alone whose row the last such step did not have, bool
    `(num_cells,)`."""
    decodes = ~any_of_step(table.step, ~table.is_decode())
    joined, num_rows = torch.zeros_like(decodes), table.num_cells
    for step in table.step[decodes].unique():
        here = table.step == step
        joined |= here & (table.row >= num_rows)
        num_rows = int(here.sum())
    return joined


def cells_by_step(table: CellTable) -> dict[str, tuple[Cause | None, Tensor]]:
    """Returns sets of cells that another kernel may compute, bool `(num_cells,)`, by their steps."""
    num_tokens = table.step.bincount()[table.step]
    has_prompt = any_of_step(table.step, ~table.is_decode())
    is_chunk = (table.context_len > 0) & (table.query_len > 1)
    ends_early = table.context_len + table.query_len < table.num_prompt_tokens()
    kinds: dict[str, tuple[Cause | None, Tensor]] = {
        "every step": (None, torch.ones_like(is_chunk)),
        "a step of decodes alone": (None, ~has_prompt),
        "each decode": (None, table.is_decode()),
        "a step with a prompt": (None, has_prompt),
        "a step with a later chunk": (Cause.CHUNK, any_of_step(table.step, is_chunk)),
        "a chunk that does not end its prompt": (Cause.CHUNK, ends_early),
    }
    for size in SIZES:
        kinds[f"a step of {size} tokens or more"] = (Cause.SHAPES, num_tokens >= size)
    return kinds


def any_of_step(step: Tensor, flags: Tensor) -> Tensor:
    """Returns for each cell whether one of its step is flagged."""
    return (step.bincount(flags.double()) > 0)[step]
