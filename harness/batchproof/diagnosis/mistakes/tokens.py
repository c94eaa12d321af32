"""Mistakes of positions, and of the tokens fed at them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from batchproof.diagnosis.counterfactual import PICKS, CellTable, Mistake, Suspect, of_picked_row
from batchproof.findings.causes import Cause


def position_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields positions that are off by a constant, off in one phase, or count from a wrong start."""
    table, right = suspect.table, suspect.table.index
    for text, position in _positions(table):
        yield suspect.mistake(Cause.POSITION, text, position=position)
    for text, position in _behind_a_prefix(table):
        yield suspect.mistake(Cause.POSITION, text, position=position)
    text = "positions after a preemption are off by +1"
    after_break = torch.where(table.epoch > 0, right + 1, right)
    yield suspect.mistake(Cause.PREEMPTION, text, position=after_break)


def _positions(table: CellTable) -> Iterator[tuple[str, Tensor]]:
    right, num_prompt = table.index, table.num_prompt_tokens()
    is_output, is_later = right >= num_prompt, table.context_len > 0
    for shift in (1, -1, 2, -2):
        by = f"off by {shift:+d}"
        yield f"all positions are {by}", right + shift
        yield f"positions of decodes are {by}", right + shift * is_output
        yield f"positions of a prompt are {by}", right + shift * ~is_output
        after_first = right + shift * (is_later & ~is_output)
        yield f"positions after a prompt's first chunk are {by}", after_first
    restart = torch.where(table.is_decode(), right, right - table.context_len)
    yield "positions restart at 0 in each chunk", restart
    packed = torch.where(is_later, right, table.packed)
    yield "a prompt's positions count from the start of the packed row", packed
    yield "positions count from the start of the packed row", table.packed
    for pick in PICKS:
        shared = right - table.context_len + of_picked_row(table, table.context_len, pick)
        yield f"positions continue from the {pick} row's context, for all rows of a step", shared
    yield "positions stand still while decoding", torch.where(is_output, num_prompt, right)
    restarted = torch.where(is_output, right - num_prompt, right)
    yield "positions of decodes count from 0 again", restarted
    yield "all positions are 0", torch.zeros_like(right)


def _behind_a_prefix(table: CellTable) -> Iterator[tuple[str, Tensor]]:
    """Yields positions that lack the tokens taken over from a prefix cache."""
    num_taken = torch.zeros(len(table.sequences), dtype=torch.long)
    num_taken.index_add_(0, table.seq, table.is_reused)
    taken, is_output = num_taken[table.seq], table.index >= table.num_prompt_tokens()
    is_fed, is_later = table.is_reused == 0, table.context_len > taken
    for words, where in (
        ("behind a prefix", is_fed),
        ("behind a prefix, from its second chunk on,", is_later & ~is_output),
        ("of decodes behind a prefix", is_output),
    ):
        low = table.index - taken * where
        yield f"positions {words} do not count the tokens taken over", low
        yield f"positions {words} count the tokens taken over twice", table.index + taken * where


def feeding_mistakes(suspect: Suspect) -> Iterator[Mistake]:
    """Yields the right positions with wrong tokens."""
    table, right = suspect.table, suspect.table.token
    for text, where, token in _tokens(table):
        yield suspect.mistake(Cause.FEED, text, token=torch.where(where, token, right))
    is_prompt, is_later = table.index < table.num_prompt_tokens(), table.context_len > 0
    is_start = (table.index == table.context_len) & is_later & is_prompt
    text = "a chunk starts with the last token of the one before"
    before = _token_at(table, table.index - 1)
    yield suspect.mistake(Cause.CHUNK, text, token=torch.where(is_start, before, right))
    yield from _shortened(suspect)
    yield from _replayed(suspect)


def _tokens(table: CellTable) -> Iterator[tuple[str, Tensor, Tensor]]:
    index, num_prompt = table.index, table.num_prompt_tokens()
    is_output, zero = index >= num_prompt, torch.zeros_like(index)
    last_prompt, first_output = _token_at(table, num_prompt - 1), _token_at(table, num_prompt)
    before = _token_at(table, index - 1)
    yield "the first decode is fed the prompt's last token again", index == num_prompt, last_prompt
    yield "each decode is fed the token before the one that is due", is_output, before
    yield "each decode is fed token 0", is_output, zero
    yield "the prompt's last token is fed as token 0", index == num_prompt - 1, zero
    yield "each decode is fed the first output again", is_output, first_output


def _token_at(table: CellTable, index: Tensor) -> Tensor:
    """Returns for each cell the token of its sequence at `index`, clamped to the sequence."""
    longest = max(len(fed.token_ids) for fed in table.sequences)
    token_of = torch.zeros(len(table.sequences), longest, dtype=torch.long)
    for number, fed in enumerate(table.sequences):
        token_of[number, : len(fed.token_ids)] = torch.tensor(fed.token_ids)
    lens = torch.tensor([len(fed.token_ids) for fed in table.sequences])[table.seq]
    return token_of[table.seq, index.clamp(min=0).minimum(lens - 1)]


def _shortened(suspect: Suspect) -> Iterator[Mistake]:
    """Yields mistakes in which prompt tokens are left out; what follows moves up, or stays."""
    index, num_prompt = suspect.table.index, suspect.table.sequences[suspect.seq].num_prompt_tokens
    # Which end is kept, and how much of it; from where to where the rest is left out.
    cuts = [("last", kept, 0, num_prompt - kept) for kept in _lengths(num_prompt)]
    cuts += [("first", kept, kept, num_prompt) for kept in _lengths(num_prompt)]
    for end, kept, start, stop in cuts:
        text, count = f"only the prompt's {end} {kept} tokens are fed", num_prompt - kept
        gone = (index >= start) & (index < stop) & suspect.is_own
        samples = _last_kept(suspect, gone)
        if samples is None:
            continue
        cause = Cause.FEED if count == 1 else Cause.INPUT  # a slip, or a prompt cut short
        left = {"visible": suspect.honest.visible & ~gone, "samples": samples}
        moved = torch.where(suspect.is_own & (index >= stop), index - count, index)
        yield suspect.mistake(cause, text, **left, position=moved)
        yield suspect.mistake(cause, f"{text}, at their places", **left)


def _lengths(num_prompt: int) -> list[int]:
    """Returns lengths to which a prompt may be cut: short, nearly whole, and multiples of 8."""
    return [n for n in range(1, num_prompt) if n <= 12 or n >= num_prompt - 4 or n % 8 == 0]


def _last_kept(suspect: Suspect, gone: Tensor) -> Tensor | None:
    """Returns the cells to sample from: where one was left out, the last one before it; None if there
    is none."""
    kept = (suspect.is_own & ~gone).nonzero()[:, 0]
    found = [kept[kept <= cell] for cell in suspect.honest.samples]
    if any(len(each) == 0 for each in found):
        return None
    return torch.stack([each[-1] for each in found])


def _replayed(suspect: Suspect) -> Iterator[Mistake]:
    """Yields the mistake in which a step is fed the tokens of an earlier step of the same shape."""
    table = suspect.table
    seen: dict[tuple[tuple[int, int], ...], Tensor] = {}
    token = table.token.clone()
    for step in table.step.unique():
        here = (table.step == step).nonzero()[:, 0]
        lens = table.context_len[here].tolist(), table.query_len[here].tolist()
        shape = tuple(zip(*lens, strict=True))
        if shape in seen:
            token[here] = seen[shape]
        seen.setdefault(shape, table.token[here])
    text = "a step is fed the tokens of an earlier step of the same shape"
    yield suspect.mistake(Cause.STALE, text, token=token)
