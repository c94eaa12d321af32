"""Mistakes of padding: pads that take part, and real tokens taken for pads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.counterfactual import View
from batchproof.diagnosis.mistake import Mistake, Suspect
from batchproof.findings.causes import Cause


def padding_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes of left padding.

    The prompt has as many pads in front as the longest prompt of its first step is longer.
    """
    table, own = suspect.table, suspect.is_own
    first = table.step == table.step[own].min()
    num_pads = int((table.query_len[first].max() - table.query_len[own & first].max()).item())
    if num_pads > 0:
        yield from _pads_counted(suspect, num_pads)
        yield from _pads_seen(suspect, num_pads)
    if not suspect.is_continuous:
        yield from _too_much_padding(suspect)


def _too_much_padding(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which real tokens are taken for pads: the first ones, or those equal to the
    pad id."""
    table, own = suspect.table, suspect.is_own
    for num_hidden in range(1, table.sequences[suspect.seq].num_prompt_tokens):
        hidden = own & (table.index < num_hidden)
        moved = (table.index - num_hidden * own).clamp(min=0)
        text = f"the first {num_hidden} tokens of the prompt are taken for padding"
        yield from _taken_for_pads(suspect, text, hidden, moved)
    alike = own & (table.token == 0) & (table.index < table.num_prompt_tokens())
    skipped = torch.stack([(alike & (table.index <= index)).sum() for index in table.index])
    moved = (table.index - skipped * own).clamp(min=0)
    yield from _taken_for_pads(suspect, "a prompt's own token 0 is taken for padding", alike, moved)


def _taken_for_pads(suspect: Suspect, text: str, cells: Tensor, moved: Tensor) -> Iterator[Mistake]:
    visible = suspect.honest.visible & ~cells
    yield suspect.mistake(Cause.PADDING, text, visible=visible)
    yield suspect.mistake(Cause.PADDING, f"{text}, and not counted", visible=visible, position=moved)


def _pads_seen(suspect: Suspect, num_pads: int) -> Iterator[Mistake]:
    table, own = suspect.table, suspect.is_own
    is_decode = (table.context_len > 0) & own
    phases = {
        "attended": own,
        "attended in the prefill": own & ~is_decode,
        "attended in decodes": is_decode,
    }
    for who, attended in phases.items():
        for is_counted in (False, True):
            counted = " and counted as positions" if is_counted else ""
            view = _padded(suspect, num_pads, attended, is_counted, "decodes" not in who)
            yield Mistake(Cause.PADDING, f"its {num_pads} pads are {who}{counted}", view)
    for num_seen in range(1, num_pads):
        some = torch.arange(num_pads) >= num_pads - num_seen
        view = _padded(suspect, num_pads, own, False, True, seen=some)
        yield Mistake(Cause.PADDING, f"of its {num_pads} pads the last {num_seen} are attended", view)


def _pads_counted(suspect: Suspect, num_pads: int) -> Iterator[Mistake]:
    table, own = suspect.table, suspect.is_own
    is_decode = (table.context_len > 0) & own
    for words, where in (("", own), (" in decodes", is_decode)):
        text = f"its {num_pads} pads are counted{words}: positions are off by {num_pads:+d}"
        yield suspect.mistake(Cause.PADDING, text, position=table.index + num_pads * where)
    text = f"its {num_pads} pads are taken off its positions"
    yield suspect.mistake(Cause.PADDING, text, position=table.index - num_pads * own)


def _padded(
    suspect: Suspect,
    num_pads: int,
    attended: Tensor,
    is_counted: bool,
    pads_see_pads: bool,
    seen: Tensor | None = None,
) -> View:
    """Returns the view with pads of token 0 in front, seen by the queries `attended`, bool
    `(num_cells,)`.

    Where pads are masked in the prefill, they see nothing themselves.
    """
    honest, table = suspect.honest, suspect.table
    pads = torch.zeros(num_pads, dtype=torch.long)
    among = torch.ones(num_pads, num_pads).tril().bool() & pads_see_pads
    keys = torch.ones(num_pads, dtype=torch.bool) if seen is None else seen
    of_cells = torch.cat([honest.visible, attended[:, None] & keys], dim=1)
    of_pads = torch.cat([torch.zeros(num_pads, table.num_cells, dtype=torch.bool), among], dim=1)
    shift = num_pads * suspect.is_own if is_counted else 0
    return replace(
        honest,
        token=torch.cat([honest.token, pads]),
        position=torch.cat([table.index + shift, torch.arange(num_pads) if is_counted else pads]),
        visible=torch.cat([of_cells, of_pads]),
    )
