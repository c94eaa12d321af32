"""One step's rows as arrays: what the forward pass and the attention kernels need, no tensors yet."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchproof_engines.paged.scheduler import Scheduled

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """T tokens of R rows, packed end to end; rows of one token ("decodes") come first, by lane."""

    scheduled: tuple[Scheduled, ...]  # (R,) in the order of the rows
    num_decodes: int  # rows 0 to num_decodes - 1 have one token
    token_ids: Ints  # (T,) PENDING where only the device knows it
    position_ids: Ints  # (T,)
    context_lens: Ints  # (R,)
    query_lens: Ints  # (R,)
    cu_seqlens_q: Ints  # (R + 1,)
    lanes: Ints  # (R,)
    sampled_rows: Ints  # (S,) rows a token is chosen for, ascending

    @property
    def num_prompt_tokens(self) -> int:
        """Of the rows behind the decodes."""
        return len(self.token_ids) - self.num_decodes

    @property
    def sampled(self) -> tuple[Scheduled, ...]:
        """(S,) the rows a token is chosen for."""
        if len(self.sampled_rows) == len(self.scheduled):
            return self.scheduled
        return tuple(self.scheduled[row] for row in self.sampled_rows.tolist())

    @property
    def sampled_tokens(self) -> Ints:
        """(S,) where in T each sampled row's last token is."""
        return self.cu_seqlens_q[1:][self.sampled_rows] - 1

    def slot_mapping(self, block_size: int, first_row: int = 0) -> Ints:
        """Where the keys of the rows from `first_row` on go, one for each token: block_id * block_size
        + offset."""
        blocks: list[int] = []
        for sequence, context_len, query_len, _ in self.scheduled[first_row:]:
            table = sequence.block_table
            if query_len == 1:
                blocks.append(table[context_len // block_size])
            else:
                span = range(context_len, context_len + query_len)
                blocks += [table[position // block_size] for position in span]
        offsets = self.position_ids[self.cu_seqlens_q[first_row] :] % block_size
        slots: Ints = np.array(blocks, dtype=np.int64) * block_size + offsets
        return slots

    @classmethod
    def of(cls, scheduled: Seq[Scheduled]) -> RaggedBatch:
        decodes = [row for row in scheduled if row[2] == 1]
        lanes = [row[0].lane for row in decodes]
        if lanes != sorted(lanes):  # mostly they are: whoever came first has the lowest
            decodes.sort(key=_lane)
            lanes.sort()
        prefills = [row for row in scheduled if row[2] > 1]
        rows = (*decodes, *prefills)
        token_ids = [sequence.token_ids[context_len] for sequence, context_len, _, _ in decodes]
        for sequence, context_len, query_len, _ in prefills:
            token_ids += sequence.token_ids[context_len : context_len + query_len]
        context_lens = np.array([row[1] for row in rows], dtype=np.int64)
        query_lens = np.ones(len(rows), dtype=np.int64)
        query_lens[len(decodes) :] = [row[2] for row in prefills]
        lanes += [row[0].lane for row in prefills]
        cu_seqlens_q = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(query_lens, out=cu_seqlens_q[1:])
        position_ids = context_lens
        if prefills:
            position_ids = np.repeat(context_lens - cu_seqlens_q[:-1], query_lens)
            position_ids += np.arange(len(token_ids))
        return cls(
            scheduled=rows,
            num_decodes=len(decodes),
            token_ids=np.array(token_ids, dtype=np.int64),
            position_ids=position_ids,
            context_lens=context_lens,
            query_lens=query_lens,
            cu_seqlens_q=cu_seqlens_q,
            lanes=np.array(lanes, dtype=np.int64),
            sampled_rows=np.flatnonzero([row[3] for row in rows]),
        )


def _lane(row: Scheduled) -> int:
    return row.sequence.lane
