"""Mistakes of attention: wrong keys of a request's own sequence, of another request, pads, and wrong
scores."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from batchproof.diagnosis.counterfactual import (
    FULL,
    PICKS,
    SLIDING,
    CellTable,
    Edit,
    Mistake,
    Suspect,
    View,
    of_picked_row,
    of_row_numbers,
)
from batchproof.diagnosis.mistakes.storage import held_where
from batchproof.findings.causes import Cause

NO_ROW = 1 << 30


def mask_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields masks that belong to layers of another kind, or that are too wide, too narrow or shifted
    within the own sequence."""
    for text, within in _of_other_kinds(suspect.honest):
        yield suspect.mistake(Cause.MASK, text, within=within)
    for text, visible in _within_the_sequence(suspect):
        yield suspect.mistake(Cause.MASK, text, visible=visible)
    yield from _own_zeros(suspect)  # also of a request alone


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
    both = own & by_then & table.in_window(window)
    yield "the tokens of a prompt see each other in both directions", right | both
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


def leak_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    for text, visible in _leaks(suspect):
        yield suspect.mistake(Cause.LEAK, text, visible=visible)


def _leaks(suspect: Suspect) -> Iterator[tuple[str, Tensor]]:
    table, right = suspect.table, suspect.honest.visible
    rows = _row_of(table)
    now = table.fed_by_then() & (rows < NO_ROW)
    up_to_own = now & (table.distance() >= 0) & table.in_window(suspect.window)
    text = "the mask compares positions only: all keys of the step up to one's own position are seen"
    yield text, up_to_own
    earlier = (table.step[:, None] == table.step) & (table.packed <= table.packed[:, None])
    yield "the mask is causal over the whole packed row: earlier rows are seen", right | earlier
    row_before = now & (rows < table.row[:, None])
    yield "all keys of earlier rows are seen", right | row_before
    text = "no mask keeps the sequences apart: all keys of the step are seen"
    yield text, right | (now & ~table.among_own())
    for number, fed in enumerate(table.sequences):
        own = table.seq == number
        theirs = now & own
        if number == suspect.seq or not bool(theirs[suspect.is_own].any()):
            continue
        name = fed.request.request_id
        last = table.index == _length_by_then(table, number)[:, None] - 1
        yield f"all keys of {name!r} are seen", right | theirs
        yield f"the keys of {name!r} up to one's own position are seen", right | (up_to_own & own)
        yield f"the first key of {name!r} is seen", right | (theirs & (table.index == 0))
        yield f"the last key of {name!r} is seen", right | (theirs & last)


def _row_of(table: CellTable) -> Tensor:
    """Returns the row of the key's sequence in the query's step, int64 `(query, key)`, or `NO_ROW`."""
    rows = torch.full((int(table.step.max()) + 1, len(table.sequences)), NO_ROW)
    rows[table.step, table.seq] = table.row
    return rows[table.step[:, None], table.seq[None, :]]


def _length_by_then(table: CellTable, number: int) -> Tensor:
    """Returns for each query how many keys the sequence has, those of the query's step included."""
    mine = (table.seq == number) & table.fed_by_then()
    return torch.where(mine, table.index + 1, 0).amax(dim=1)


def stale_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which keys or tokens of sequences that had ended before are used."""
    table, right = suspect.table, suspect.honest.visible
    own = suspect.is_own
    start = int(table.step[own].min())
    seen_now = (table.context_len + table.query_len)[:, None]
    is_later = (table.context_len > 0)[:, None]
    mine = table.sequences[suspect.seq]
    for number, fed in reversed(list(enumerate(table.sequences))):
        theirs = table.seq == number
        if number == suspect.seq or not bool(theirs.any()) or int(table.step[theirs].max()) >= start:
            continue
        call = f" of call {fed.call + 1}" if fed.call != mine.call else ""
        name = f"{fed.request.request_id!r}{call}"
        all_theirs = own[:, None] & theirs
        beyond = all_theirs & (table.index >= seen_now)
        text = f"keys of the former tenant {name} are seen behind one's own"
        yield suspect.mistake(Cause.STALE, text, visible=right | beyond)
        yield suspect.mistake(Cause.STALE, f"{text}, in decodes", visible=right | (beyond & is_later))
        text = f"all keys of the former tenant {name} are seen"
        yield suspect.mistake(Cause.STALE, text, visible=right | all_theirs)
        kept = torch.tensor(fed.token_ids)[table.index.clamp(max=len(fed.token_ids) - 1)]
        overlaid = own & (table.index < fed.num_prompt_tokens) & (table.index < mine.num_prompt_tokens)
        token = torch.where(overlaid, kept, table.token)
        text = f"the prompt of {name} is fed again, as far as it reaches"
        yield suspect.mistake(Cause.STALE, text, token=token)
        token = torch.where(overlaid & (table.index == 0), kept, table.token)
        text = f"the first token of {name} is fed in place of one's own"
        yield suspect.mistake(Cause.STALE, text, token=token)


def routing_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which logits or tokens of another row of the same step are used."""
    table = suspect.table
    own_cells = suspect.honest.samples.tolist()
    by_step: dict[int, dict[int, int]] = {}
    for sample in table.samples:
        by_step.setdefault(int(table.step[sample.cell]), {})[sample.seq] = sample.cell
    # In the step of each own cell, which may be one of several.
    sampled = [{**by_step[int(table.step[cell])], suspect.seq: cell} for cell in own_cells]
    for number, fed in enumerate(table.sequences):
        cells = [others.get(number, own) for own, others in zip(own_cells, sampled, strict=True)]
        text = f"it was given what belongs to {fed.request.request_id!r}"
        yield suspect.mistake(Cause.ROUTING, text, samples=torch.tensor(cells))
    for offset, words in ((1, "the next row"), (-1, "the row before")):
        shifted = []
        for own, others in zip(own_cells, sampled, strict=True):
            cells = sorted(others.values())
            shifted.append(cells[(cells.index(own) + offset) % len(cells)])
        text = f"it was given what belongs to {words} of its step"
        yield suspect.mistake(Cause.ROUTING, text, samples=torch.tensor(shifted))
    yield from _of_other_rows(suspect)


def _of_other_rows(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which decodes are fed what is due in another row, or was in the same one."""
    table = suspect.table
    places = [*zip(table.step.tolist(), table.row.tolist(), strict=True)]
    decodes = table.is_decode().nonzero()[:, 0].tolist()
    fed = {places[cell]: int(table.token[cell]) for cell in decodes}
    num_rows = {step: row + 1 for step, row in sorted(places)}
    chosen: dict[tuple[int, int], int] = {}  # one step earlier in a row of the same number
    for sample in table.samples:
        (step, row), after = places[sample.cell], int(table.index[sample.cell]) + 1
        tokens = table.sequences[sample.seq].token_ids
        if after < len(tokens):
            chosen[step + 1, row] = tokens[after]
    for words, known, offset in (
        ("the sequence that had their row in the step before", chosen, 0),
        ("the next row of their step", fed, 1),
        ("the row before of their step", fed, -1),
    ):
        token = table.token.clone()
        for cell in decodes:
            step, row = places[cell]  # behind the last comes the first
            token[cell] = known.get((step, (row + offset) % num_rows[step]), int(token[cell]))
        yield suspect.mistake(Cause.FEED, f"decodes are fed the token of {words}", token=token)
    text = "its position is that of the row that had its number before a request left"
    start = of_row_numbers(table)
    yield suspect.mistake(Cause.POSITION, text, position=table.index - table.context_len + start)


def padding_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes of padding. On the left the prompt has as many pads as the longest prompt of its
    first step is longer."""
    table, own = suspect.table, suspect.is_own
    first = table.step == table.step[own].min()
    num_pads = int((table.query_len[first].max() - table.query_len[own & first].max()).item())
    if num_pads > 0:
        yield from _with_pads(suspect, num_pads)
    yield from _padded_with_zeros(suspect)
    yield from _read_at_pads(suspect)
    if not suspect.is_continuous:
        yield from _too_much_padding(suspect)


def _with_pads(suspect: Suspect, num_pads: int) -> Iterator[Mistake]:
    """Yields mistakes in which the pads are counted as positions, or attended, or both."""
    table, own, pads = suspect.table, suspect.is_own, f"its {num_pads} pads are"
    is_decode = (table.context_len > 0) & own
    for words, where in (("", own), (" in decodes", is_decode)):
        text = f"{pads} counted{words}: positions are off by {num_pads:+d}"
        yield suspect.mistake(Cause.PADDING, text, position=table.index + num_pads * where)
    text = f"{pads} taken off its positions"
    yield suspect.mistake(Cause.PADDING, text, position=table.index - num_pads * own)
    for words, where in (("", own), (" in the prefill", own & ~is_decode), (" in decodes", is_decode)):
        # Where pads are masked in the prefill, they see nothing themselves.
        view = _padded(suspect, num_pads, where, pads_see_pads=where is not is_decode)
        yield Mistake(Cause.PADDING, f"{pads} attended{words}", view)
        counted = replace(view, position=view.position + num_pads * pad(own, (0, num_pads)))
        counted.position[table.num_cells :] = torch.arange(num_pads)
        yield Mistake(Cause.PADDING, f"{pads} attended{words} and counted as positions", counted)


def _padded(suspect: Suspect, num_pads: int, attended: Tensor, pads_see_pads: bool) -> View:
    """Returns the view with pads of token 0, at position 0, which the queries `attended` see, bool
    `(num_cells,)`."""
    honest = suspect.honest
    visible = pad(honest.visible, (0, num_pads, 0, num_pads))
    visible[: len(attended), len(attended) :] = attended[:, None]
    visible[len(attended) :, len(attended) :] = torch.ones(num_pads, num_pads).tril() * pads_see_pads
    return replace(
        honest,
        token=pad(honest.token, (0, num_pads)),
        position=pad(honest.position, (0, num_pads)),
        visible=visible,
    )


def _padded_with_zeros(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes of decodes whose caches have zeros in front, up to the longest of their step:
    these are attended, or each row has the mask of another."""
    table, size = suspect.table, suspect.table.num_cells
    where = "the zeros that pad its cache in front, to the longest of a step, are"
    for what, its in (
        ("attended", of_picked_row(table, table.context_len, "longest")),
        ("masked as those of the first row", of_picked_row(table, table.context_len, "first")),
        ("masked as before a request left, by the number of its row", of_row_numbers(table)),
    ):
        surplus = its - table.context_len
        surplus *= suspect.is_own & table.is_decode()
        most = int(surplus.max().clamp(min=0).item())
        view = _padded(suspect, most, surplus > 0, pads_see_pads=True)
        view.visible[:size, size:] = torch.arange(most) < surplus[:, None]
        view.visible[:size, :size] &= table.index >= -surplus[:, None]
        zeros = partial(held_where, held=torch.zeros_like, are_values_kept=False)
        edit = Edit(torch.arange(size + most) >= size, zeros) if most else None
        yield Mistake(Cause.PADDING, f"{where} {what}", replace(view, edit=edit))


def _read_at_pads(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes of padding on the right: a token is chosen at the last column of the batch,
    though its row ends before: at each token if all are fed again, or at the first alone."""
    table, honest = suspect.table, suspect.honest
    for words, where in (("", table.index >= 0), (" of its prefill", table.context_len == 0)):
        view, num_pads = honest, 0
        for at, cell in enumerate(honest.samples.tolist()):
            batch = where & (table.step == table.step[cell])
            num = int((table.index[batch].max() - table.index[cell]).item()) if where[cell] else 0
            if num:
                view, num_pads = _continued(view, at, cell, num), max(num, num_pads)
        if num_pads:
            text = f"a token is chosen at the last of up to {num_pads} pads behind its row{words}"
            yield Mistake(Cause.PADDING, text, view)


def _continued(view: View, sample: int, cell: int, num_pads: int) -> View:
    """Returns the view in which the sample is read from the last of so many pads of token 0 behind the
    cell, which see what it sees, and themselves."""
    size = len(view.token)
    visible = pad(view.visible, (0, num_pads, 0, num_pads))
    visible[size:] = visible[cell]
    visible[size:, size:] = torch.ones(num_pads, num_pads).tril()
    samples = view.samples.clone()
    samples[sample] = size + num_pads - 1
    position = torch.cat([view.position, view.position[cell] + torch.arange(1, num_pads + 1)])
    token = pad(view.token, (0, num_pads))
    return replace(view, token=token, position=position, visible=visible, samples=samples)


def _too_much_padding(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which real tokens are taken for pads: the first ones, or those equal to the
    pad id."""
    table, own = suspect.table, suspect.is_own
    for num_hidden in range(1, table.sequences[suspect.seq].num_prompt_tokens):
        text = f"the first {num_hidden} tokens of the prompt are taken for padding"
        yield from _taken_for_pads(suspect, text, own & (table.index < num_hidden))
    yield from _own_zeros(suspect)


def _own_zeros(suspect: Suspect) -> Iterator[Mistake]:
    table = suspect.table
    alike = suspect.is_own & (table.token == 0) & (table.index < table.num_prompt_tokens())
    yield from _taken_for_pads(suspect, "a prompt's own token 0 is taken for padding", alike)


def _taken_for_pads(suspect: Suspect, text: str, cells: Tensor) -> Iterator[Mistake]:
    table, visible = suspect.table, suspect.honest.visible & ~cells
    yield suspect.mistake(Cause.PADDING, text, visible=visible)
    num_before = (cells & (table.index <= table.index[:, None])).sum(dim=1)
    moved = (table.index - num_before * suspect.is_own).clamp(min=0)
    yield suspect.mistake(Cause.PADDING, f"{text}, and not counted", visible=visible, position=moved)
