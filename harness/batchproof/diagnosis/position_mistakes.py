"""Mistakes of positions, and of the tokens fed at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.diagnosis.cell_table import CellTable
from batchproof.diagnosis.mistake import Mistake, Suspect, of_first_row
from batchproof.findings.causes import Cause


def position_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields positions that are off by a constant, off in one phase, or counted from the wrong
    start."""
    table, right = suspect.table, suspect.table.index
    is_output = right >= table.num_prompt_tokens()
    is_later = table.context_len > 0
    for shift in (1, -1, 2, -2):
        by = f"off by {shift:+d}"
        yield suspect.at(Cause.POSITION, f"all positions are {by}", right + shift)
        yield suspect.at(Cause.POSITION, f"positions of decodes are {by}", right + shift * is_output)
        yield suspect.at(Cause.POSITION, f"positions of a prompt are {by}", right + shift * ~is_output)
        after = right + shift * (is_later & ~is_output)
        yield suspect.at(Cause.POSITION, f"positions after a prompt's first chunk are {by}", after)
    restart = torch.where(table.is_decode(), right, right - table.context_len)
    yield suspect.at(Cause.POSITION, "positions restart at 0 in each chunk", restart)
    packed = torch.where(is_later, right, table.packed)
    yield suspect.at(
        Cause.POSITION, "a prompt's positions count from the start of the packed row", packed
    )
    yield suspect.at(Cause.POSITION, "positions count from the start of the packed row", table.packed)
    for pick in ("first", "last", "longest", "shortest"):
        start = of_first_row(table, table.context_len, pick)
        shared = right - table.context_len + start
        text = f"positions continue from the {pick} row's context, for all rows of a step"
        yield suspect.at(Cause.POSITION, text, shared)
    stuck = torch.where(is_output, table.num_prompt_tokens(), right)
    yield suspect.at(Cause.POSITION, "positions stand still while decoding", stuck)
    restarted = torch.where(is_output, right - table.num_prompt_tokens(), right)
    yield suspect.at(Cause.POSITION, "positions of decodes count from 0 again", restarted)
    yield suspect.at(Cause.POSITION, "all positions are 0", torch.zeros_like(right))
    after_break = torch.where(table.epoch > 0, right + 1, right)
    text = "positions after a preemption are off by +1"
    yield suspect.at(Cause.PREEMPTION, text, after_break)


def feeding_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields the right positions with wrong tokens."""
    table, right = suspect.table, suspect.table.token
    num_prompt = table.num_prompt_tokens()
    is_output, first = table.index >= num_prompt, table.index == num_prompt
    before = _token_at(table, table.index - 1)
    last_prompt = _token_at(table, num_prompt - 1)
    yield suspect.fed(
        Cause.FEED,
        "the first decode is fed the prompt's last token again",
        torch.where(first, last_prompt, right),
    )
    yield suspect.fed(
        Cause.FEED,
        "each decode is fed the token before the one that is due",
        torch.where(is_output, before, right),
    )
    yield suspect.fed(
        Cause.FEED, "each decode is fed token 0", torch.where(is_output, torch.zeros_like(right), right)
    )
    yield suspect.fed(
        Cause.FEED,
        "the prompt's last token is fed as token 0",
        torch.where(table.index == num_prompt - 1, torch.zeros_like(right), right),
    )
    yield suspect.fed(
        Cause.FEED,
        "each decode is fed the first output again",
        torch.where(is_output, _token_at(table, num_prompt), right),
    )
    chunk_start = (table.index == table.context_len) & (table.context_len > 0) & ~is_output
    yield suspect.fed(
        Cause.CHUNK,
        "a chunk starts with the last token of the one before",
        torch.where(chunk_start, before, right),
    )
    yield from _shortened(suspect)
    yield from _resumed(suspect)
    yield from _replayed(suspect)


def _token_at(table: CellTable, index: Tensor) -> Tensor:
    """Returns for each cell the token of its sequence at `index`, clamped to the sequence."""
    longest = max(len(fed.token_ids) for fed in table.sequences)
    token_of = torch.zeros(len(table.sequences), longest, dtype=torch.long)
    for number, fed in enumerate(table.sequences):
        token_of[number, : len(fed.token_ids)] = torch.tensor(fed.token_ids)
    lens = torch.tensor([len(fed.token_ids) for fed in table.sequences])[table.seq]
    return token_of[table.seq, index.clamp(min=0).minimum(lens - 1)]


def _shortened(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which prompt tokens are left out; what follows moves up, or keeps its
    place."""
    table, honest = suspect.table, suspect.honest
    num_prompt = table.sequences[suspect.seq].num_prompt_tokens
    dropped = {
        f"only the prompt's last {kept} tokens are fed": (
            table.index < num_prompt - kept,
            num_prompt - kept,
        )
        for kept in _lengths(num_prompt)
    }
    dropped |= {
        f"only the prompt's first {kept} tokens are fed": (
            (table.index >= kept) & (table.index < num_prompt),
            num_prompt - kept,
        )
        for kept in _lengths(num_prompt)
    }
    for text, (cells, count) in dropped.items():
        gone = cells & suspect.is_own
        samples = _last_kept(suspect, gone)
        if samples is None:
            continue
        visible = honest.visible & ~gone
        moved = torch.where(
            suspect.is_own & (table.index >= num_prompt - count), table.index - count, table.index
        )
        if "last" not in text:
            moved = torch.where(
                suspect.is_own & (table.index >= num_prompt), table.index - count, table.index
            )
        cause = Cause.FEED if count == 1 else Cause.INPUT  # a slip, or a prompt cut short
        closed = replace(honest, visible=visible, samples=samples, position=moved)
        yield Mistake(cause, text, closed)
        in_place = replace(honest, visible=visible, samples=samples)
        yield Mistake(cause, f"{text}, at their places", in_place)


def _lengths(num_prompt: int) -> list[int]:
    """Returns the lengths to which a prompt may be cut: short ones, nearly whole ones, and multiples of
    8."""
    return [n for n in range(1, num_prompt) if n <= 12 or n >= num_prompt - 4 or n % 8 == 0]


def _last_kept(suspect: Suspect, gone: Tensor) -> Tensor | None:
    """Returns the cells to sample from: where one was left out, the last one before it; None if there
    is none."""
    kept = (suspect.is_own & ~gone).nonzero()[:, 0]
    found = [kept[kept <= cell] for cell in suspect.honest.samples]
    if any(len(each) == 0 for each in found):
        return None
    return torch.stack([each[-1] for each in found])


def _resumed(suspect: Suspect) -> Iterator[Mistake]:
    """Yields the mistake in which outputs are not fed again after a preemption: the next ones take
    their places."""
    table = suspect.table
    again = suspect.is_own & (table.epoch > 0)
    if not bool(again.any()):
        return
    num_prompt = table.sequences[suspect.seq].num_prompt_tokens
    index = table.index.clone()
    for epoch in table.epoch[again].unique():
        cells = again & (table.epoch == epoch)
        first = int(cells.nonzero()[0])
        num_before = sum(1 for s in table.samples if s.seq == suspect.seq and s.cell < first)
        index[cells & (table.index >= num_prompt)] += num_before
    text = "after a preemption only the prompt is fed again, its outputs so far are left out"
    yield suspect.fed(Cause.PREEMPTION, text, _token_at(table, index))


def _replayed(suspect: Suspect) -> Iterator[Mistake]:
    """Yields the mistake in which a step is fed the tokens of an earlier step of the same shape."""
    table = suspect.table
    seen: dict[tuple[tuple[int, int], ...], Tensor] = {}
    token = table.token.clone()
    for step in table.step.unique():
        here = (table.step == step).nonzero()[:, 0]
        pairs = torch.stack([table.context_len[here], table.query_len[here]], dim=1).tolist()
        shape = tuple((context, query) for context, query in pairs)
        if shape in seen:
            token[here] = seen[shape]
        seen.setdefault(shape, table.token[here])
    yield suspect.fed(
        Cause.STALE, "a step is fed the tokens of an earlier step of the same shape", token
    )
