"""One step's rows as arrays: what the forward pass and the attention kernels need, no tensors yet."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from implementations.paged.scheduler import Scheduled

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """T tokens of R rows, packed end to end; rows of one token ("decodes") come first, by lane.

    The slot of a token is block_id * block_size + offset. `scheduled` is in the order of the rows.
    """

    scheduled: tuple[Scheduled, ...]  # (R,)
    num_decodes: int  # rows 0 to num_decodes - 1 have one token
    token_ids: Ints  # (T,) PENDING where only the device knows it
    position_ids: Ints  # (T,)
    slot_mapping: Ints  # (T,)
    context_lens: Ints  # (R,)
    query_lens: Ints  # (R,)
    cu_seqlens_q: Ints  # (R + 1,)
    lanes: Ints  # (R,)
    sampled_rows: Ints  # (S,) rows a token is chosen for, ascending

    @property
    def block_tables(self) -> list[list[int]]:
        """R lists of block ids, each long enough for context and fed tokens."""
        return [each.sequence.block_table for each in self.scheduled]

    @property
    def sampled_tokens(self) -> Ints:
        """(S,) where in T each sampled row's last token is."""
        return self.cu_seqlens_q[1:][self.sampled_rows] - 1

    @classmethod
    def of(cls, scheduled: Seq[Scheduled], block_size: int) -> RaggedBatch:
        decodes = [each for each in scheduled if each.query_len == 1]
        decodes.sort(key=lambda each: each.sequence.lane)
        prefills = [each for each in scheduled if each.query_len > 1]
        rows = (*decodes, *prefills)
        token_ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        for sequence, context_len, query_len, _ in rows:
            if query_len == 1:
                token_ids.append(sequence.token_ids[context_len])
                positions.append(context_len)
                blocks.append(sequence.block_table[context_len // block_size])
            else:
                span = range(context_len, context_len + query_len)
                token_ids += sequence.token_ids[context_len : context_len + query_len]
                positions += span
                blocks += [sequence.block_table[position // block_size] for position in span]
        position_ids = np.array(positions, dtype=np.int64)
        query_lens = np.array([each.query_len for each in rows], dtype=np.int64)
        return cls(
            scheduled=rows,
            num_decodes=len(decodes),
            token_ids=np.array(token_ids, dtype=np.int64),
            position_ids=position_ids,
            slot_mapping=np.array(blocks, dtype=np.int64) * block_size + position_ids % block_size,
            context_lens=np.array([each.context_len for each in rows], dtype=np.int64),
            query_lens=query_lens,
            cu_seqlens_q=np.concatenate([[0], query_lens.cumsum()]),
            lanes=np.array([each.sequence.lane for each in rows], dtype=np.int64),
            sampled_rows=np.flatnonzero([each.is_sampled for each in rows]),
        )
