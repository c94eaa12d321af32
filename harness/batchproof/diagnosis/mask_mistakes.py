"""Mistakes of the mask: wrong keys of a request's own sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from batchproof.diagnosis.counterfactual import FULL, SLIDING, View
from batchproof.diagnosis.mistake import PICKS, Mistake, Suspect, of_picked_row
from batchproof.findings.causes import Cause


def mask_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields masks that belong to layers of another kind, or that are too wide, too narrow or shifted
    within the own sequence."""
    for text, within in _of_other_kinds(suspect.honest):
        yield suspect.mistake(Cause.MASK, text, within=within)
    for text, visible in _within_the_sequence(suspect):
        yield suspect.mistake(Cause.MASK, text, visible=visible)


def _of_other_kinds(honest: View) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    near = honest.within.get(SLIDING)
    if near is None:
        return
    yield "the layers that have a sliding window see beyond it", {}
    yield "the layers without a window have that of the others", {SLIDING: near, FULL: near}
    yield "layers with a sliding window and layers without have each other's mask", {FULL: near}


def _within_the_sequence(suspect: Suspect) -> Iterator[tuple[str, Tensor]]:
    table, right, window = suspect.table, suspect.honest.visible, suspect.window
    own, gap, by_then = table.among_own(), table.distance(), table.fed_by_then()
    up_to_own, is_prefill = own & (gap >= 0), ~table.is_decode()[:, None]
    yield "a query also sees the key of the next token", right | (own & by_then & (gap == -1))
    yield "the tokens of a prompt see each other in both directions", right | (own & by_then)
    yield "a query does not see its own key", right & ((gap > 0) | (table.index == 0))
    yield "a query does not see the key before its own", right & (gap != 1)
    first_rows = torch.where(table.query_len > 1, table.context_len, 0)[:, None]
    text = "in a later chunk the causal mask starts at the top left: query i sees the first i + 1 keys"
    yield text, right & (gap >= first_rows)
    for pick in PICKS:
        surplus = (table.context_len - of_picked_row(table, table.context_len, pick))[:, None]
        text = f"the mask ends by the context length of the {pick} row of the step"
        yield text, own & by_then & (gap >= surplus) & table.in_window(window)
    if window is not None:
        for width in (window - 2, window - 1, window + 1, window + 2):
            text = f"the sliding window is {width} keys wide, not {window}"
            yield text, up_to_own & table.in_window(width)
        yield "the sliding window is missing", up_to_own
        yield "the sliding window is missing while a prompt is fed", right | (up_to_own & is_prefill)
        yield "the sliding window is missing in decodes", right | (up_to_own & ~is_prefill)
    is_behind_first = table.index != 0
    yield "the first key of the sequence is not seen", right & (is_behind_first | (gap == 0))
    yield "decodes do not see the first key of the sequence", right & (is_behind_first | is_prefill)
    for width in (*range(1, 17), 32, 64):
        yield f"only the last {width} keys are seen", right & (gap < width)
