"""One step's rows as arrays: what the forward pass and the attention kernels need, no tensors yet."""

import sys
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from batchproof_paged.rows import Rows

Ints = NDArray[np.int64]
NO_TOKENS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """T tokens of R rows, packed end to end; rows of one token ("decodes") come first, by lane."""

    scheduled: Rows  # R, in this order
    num_decodes: int  # rows 0 to num_decodes - 1 have one token
    token_ids: Ints  # (T,) PENDING where only the device knows it
    position_ids: Ints  # (T,)
    context_lens: Ints  # (R,)
    query_lens: Ints  # (R,)
    seq_lens: Ints  # (R,) context_lens + query_lens
    cu_seqlens_q: Ints  # (R + 1,)
    lanes: Ints  # (R,)
    sampled_rows: Ints  # (S,) rows a token is chosen for, ascending
    scored_rows: tuple[int, ...] = ()  # all of whose tokens' logits are read, for logprobs of prompts
    has_drafts: bool = False  # tokens are chosen behind more than the last token of a row

    @property
    def num_prompt_tokens(self) -> int:
        """Of the rows behind the decodes."""
        return len(self.token_ids) - self.num_decodes

    @property
    def sampled(self) -> Rows:
        """S, the rows a token is chosen for."""
        if len(self.sampled_rows) == len(self.scheduled):
            return self.scheduled
        return self.scheduled.picked(self.sampled_rows.tolist())

    @property
    def sampled_tokens(self) -> Ints:
        """(L,) behind which of the T tokens another is chosen: each sampled row's last one, and as many
        before it as it has drafts."""
        last = self.cu_seqlens_q[1:][self.sampled_rows] - 1
        if not self.has_drafts:
            return last
        nums = [len(sequence.drafts) for sequence in self.sampled.sequences]
        pairs = zip(last.tolist(), nums, strict=True)
        return np.concatenate([np.arange(place - num, place + 1) for place, num in pairs])

    @property
    def scored_tokens(self) -> Ints:
        """(P,) where in T the tokens of these rows are."""
        if not self.scored_rows:
            return NO_TOKENS
        starts = self.cu_seqlens_q.tolist()
        return np.concatenate([np.arange(starts[row], starts[row + 1]) for row in self.scored_rows])

    def slot_mapping(self, block_size: int, first_row: int = 0) -> Ints:
        """Where the keys of the rows from `first_row` on go, one for each token: block_id * block_size
        + offset."""
        blocks: list[int] = []
        columns = (column[first_row:] for column in self.scheduled.columns[:3])
        for sequence, context_len, query_len in zip(*columns, strict=True):
            table = sequence.block_table
            if query_len == 1:
                blocks.append(table[context_len // block_size])
            else:
                span = range(context_len, context_len + query_len)
                blocks += [table[position // block_size] for position in span]
        offsets = self.position_ids[self.cu_seqlens_q[first_row] :] % block_size
        return np.array(blocks, dtype=np.int64) * block_size + offsets

    @classmethod
    def of(cls, planned: Rows) -> Self:
        rows = _in_order(planned)
        num_rows, num_decodes = len(rows), rows.query_lens.count(1)
        query_lens = np.array(rows.query_lens, dtype=np.int64)
        context_lens = np.array(rows.context_lens, dtype=np.int64)
        cu_seqlens_q = np.arange(num_rows + 1)
        position_ids = context_lens
        if num_decodes < num_rows:
            np.cumsum(query_lens, out=cu_seqlens_q[1:])
            position_ids = np.repeat(context_lens - cu_seqlens_q[:-1], query_lens)
            position_ids += np.arange(len(position_ids))
        return cls(
            scheduled=rows,
            num_decodes=num_decodes,
            token_ids=_token_ids(rows, num_decodes),
            position_ids=position_ids,
            context_lens=context_lens,
            query_lens=query_lens,
            seq_lens=context_lens + query_lens,
            cu_seqlens_q=cu_seqlens_q,
            lanes=np.array([sequence.lane for sequence in rows.sequences], dtype=np.int64),
            sampled_rows=np.flatnonzero(rows.are_sampled),
            scored_rows=tuple(row for row, each in enumerate(rows.sequences) if each.is_scored),
            has_drafts=any(sequence.drafts for sequence in rows.sequences[num_decodes:]),
        )


def _in_order(rows: Rows) -> Rows:
    """Decodes by lane, then the others as they were."""
    pairs = zip(rows.sequences, rows.query_lens, strict=True)
    places = [sequence.lane if query_len == 1 else sys.maxsize for sequence, query_len in pairs]
    if places == sorted(places):  # mostly they are: the first to come has the lowest
        return rows
    return rows.picked(sorted(range(len(places)), key=places.__getitem__))


def _token_ids(rows: Rows, num_decodes: int) -> Ints:
    """(T,)"""
    pairs = zip(rows.sequences[:num_decodes], rows.context_lens, strict=False)
    token_ids = [sequence.token_ids[context_len] for sequence, context_len in pairs]
    for sequence, context_len, query_len, _ in rows[num_decodes:]:
        token_ids += sequence.token_ids[context_len : context_len + query_len] + sequence.drafts
    return np.array(token_ids, dtype=np.int64)
