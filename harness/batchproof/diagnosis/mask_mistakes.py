"""Mistakes of the mask: wrong keys of a request's own sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.counterfactual import FULL, SLIDING, View
from batchproof.diagnosis.mistake import (
    Mistake,
    Suspect,
    among_own,
    distance,
    fed_by_then,
    of_first_row,
)
from batchproof.findings.causes import Cause


def mask_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields masks that are too wide, too narrow or shifted within the own sequence, or that belong to
    layers of another kind."""
    yield from _mistakes_of_kinds(suspect.honest)
    table, right = suspect.table, suspect.honest.visible
    own, gap, by_then = among_own(table), distance(table), fed_by_then(table)
    query_len, context_len = table.query_len[:, None], table.context_len[:, None]
    is_prefill = ~table.is_decode()[:, None]
    yield suspect.seeing(
        Cause.MASK, "a query also sees the key of the next token", right | (own & by_then & (gap == -1))
    )
    yield suspect.seeing(
        Cause.MASK, "the tokens of a prompt see each other in both directions", right | (own & by_then)
    )
    yield suspect.seeing(
        Cause.MASK, "a query does not see its own key", right & ((gap > 0) | (table.index == 0))
    )
    yield suspect.seeing(Cause.MASK, "a query does not see the key before its own", right & (gap != 1))
    top_left = torch.where(query_len > 1, context_len, 0)
    yield suspect.seeing(
        Cause.MASK,
        "in a later chunk the causal mask starts at the top left: query i sees the first i + 1 keys",
        right & (gap >= top_left),
    )
    for pick in ("first", "last", "longest", "shortest"):
        surplus = (table.context_len - of_first_row(table, table.context_len, pick))[:, None]
        yield suspect.seeing(
            Cause.MASK,
            f"the mask ends by the context length of the {pick} row of the step",
            own & by_then & (gap >= surplus) & _in_window(gap, suspect.window),
        )
    window = suspect.window
    if window is not None:
        for width in (window - 2, window - 1, window + 1, window + 2, None):
            words = "missing" if width is None else f"{width} keys wide, not {window}"
            yield suspect.seeing(
                Cause.MASK, f"the sliding window is {words}", own & (gap >= 0) & _in_window(gap, width)
            )
        yield suspect.seeing(
            Cause.MASK,
            "the sliding window is missing while a prompt is fed",
            right | (own & (gap >= 0) & is_prefill),
        )
        yield suspect.seeing(
            Cause.MASK,
            "the sliding window is missing in decodes",
            right | (own & (gap >= 0) & ~is_prefill),
        )
    yield suspect.seeing(
        Cause.MASK,
        "the first key of the sequence is not seen",
        right & ((table.index != 0) | (gap == 0)),
    )
    yield suspect.seeing(
        Cause.MASK,
        "decodes do not see the first key of the sequence",
        right & ((table.index != 0) | is_prefill),
    )
    for width in (*range(1, 17), 32, 64):
        yield suspect.seeing(Cause.MASK, f"only the last {width} keys are seen", right & (gap < width))


def _mistakes_of_kinds(honest: View) -> Iterator[Mistake]:
    near = honest.within.get(SLIDING)
    if near is None:
        return
    for words, within in (
        ("the layers that have a sliding window see beyond it", {}),
        ("the layers without a window have that of the others", {SLIDING: near, FULL: near}),
        ("layers with a sliding window and layers without have each other's mask", {FULL: near}),
    ):
        yield Mistake(Cause.MASK, words, replace(honest, within=within))


def _in_window(gap: Tensor, window: int | None) -> Tensor:
    return torch.ones_like(gap, dtype=torch.bool) if window is None else gap < window
