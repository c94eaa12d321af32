"""The effective attention mask, measured on the kernels: they build no mask that could be returned.

All keys are zero, so a query distributes its attention evenly over the keys it sees; the value of every
key is a unit vector of its own, so the output shows which keys those were.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from batchproof.api import Request, RowRecord
from batchproof_paged.attention import AttentionForm, Backend
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.block_manager import BlockManager
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.sequence import Sequence

HEAD_SIZE = 64  # of the values; a larger number of keys takes several layers


def visible_to(
    make_backend: Callable[[int, int | None], Backend],
    rows: Seq[RowRecord],
    block_size: int,
    window: int | None,
    device: torch.device,
) -> Tensor:
    """Returns which keys each query of these rows sees: bool `(total_q, total_kv)`, as in
    `MaskingEngine`.

    `make_backend` takes a number of lanes and one of blocks.
    """
    blocks = BlockManager(None, block_size, len(rows))
    sequences = [_sequence(row, lane, blocks) for lane, row in enumerate(rows)]
    backend = make_backend(len(rows), blocks.num_columns * len(rows))
    cached = [
        Scheduled(sequence, 0, row.context_len, False)
        for sequence, row in zip(sequences, rows, strict=True)
        if row.context_len
    ]
    fed = [
        Scheduled(sequence, row.context_len, row.query_len, row.is_sampled)
        for sequence, row in zip(sequences, rows, strict=True)
    ]
    num_cached = sum(row.context_len for row in rows)
    num_keys = num_cached + sum(row.query_len for row in rows)
    if cached:
        _attend(backend, cached, window, 0, num_keys, device)
    return _attend(backend, fed, window, num_cached, num_keys, device)


def _sequence(row: RowRecord, lane: int, blocks: BlockManager) -> Sequence:
    num_tokens = row.context_len + row.query_len
    sequence = Sequence(Request(row.request_id, (0,), 1), [0] * num_tokens, lane=lane)
    blocks.allocate(sequence, num_tokens)
    return sequence


def _attend(
    backend: Backend,
    scheduled: list[Scheduled],
    window: int | None,
    first_key: int,
    num_keys: int,
    device: torch.device,
) -> Tensor:
    """Feeds the rows, whose keys are numbered from `first_key` on, and returns which keys their queries
    see."""
    batch = RaggedBatch.of(Rows.of(scheduled))
    # A batch reorders its rows: the place of each of its tokens in the order given here.
    starts = np.cumsum([0, *(each.query_len for each in scheduled)])
    ours = {id(each.sequence): start for each, start in zip(scheduled, starts[:-1], strict=True)}
    places = np.concatenate(
        [ours[id(each.sequence)] + np.arange(each.query_len) for each in batch.scheduled]
    )
    where = torch.from_numpy(places)
    num_tokens = len(places)
    values = torch.zeros(num_tokens, -(-num_keys // HEAD_SIZE) * HEAD_SIZE)
    values[torch.arange(num_tokens), first_key + where] = 1.0
    values = values.to(device)
    zeros = torch.zeros(num_tokens, 1, HEAD_SIZE, device=device)
    backend.begin(batch)
    form = AttentionForm(scaling=1.0, window=window)
    seen = [
        backend.attend(layer, zeros, zeros, part[:, None].contiguous(), form)[:, 0]
        for layer, part in enumerate(values.split(HEAD_SIZE, dim=1))
    ]
    mask = torch.empty(num_tokens, num_keys, dtype=torch.bool)
    mask[where] = (torch.cat(seen, dim=1) > 0)[:, :num_keys].cpu()
    return mask
