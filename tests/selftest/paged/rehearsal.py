"""Attention of random sequences over a pool, step by step, against a slow sum in float64."""

import math
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from batchproof.api import Request
from batchproof_paged.attention import AttentionForm, Backend
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Shape:
    num_kv_heads: int = 2
    group: int = 2
    qk_dim: int = 8
    v_dim: int = 8

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group


def attend_slowly(query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> Tensor:
    """Attends in float64: `query` (Q, num_heads, qk_dim) of the last Q positions, `keys`
    (K, num_kv_heads, qk_dim), `values` likewise with v_dim -> (Q, num_heads, v_dim)."""
    num_queries, num_heads, _ = query.shape
    group = num_heads // keys.shape[1]
    result = torch.empty(num_queries, num_heads, values.shape[2], dtype=torch.float64)
    for q in range(num_queries):
        last = len(keys) - num_queries + q
        first = 0 if form.window is None else max(0, last + 1 - form.window)
        for head in range(num_heads):
            seen = keys[first : last + 1, head // group].double()
            scores = seen @ query[q, head].double() * form.scaling
            if form.softcap is not None:
                scores = form.softcap * torch.tanh(scores / form.softcap)
            weights = scores.exp()
            total = weights.sum()
            if form.sinks is not None:
                total = total + form.sinks[head].double().exp()
            result[q, head] = weights @ values[first : last + 1, head // group].double() / total
    return result


def sequence(name: str, lane: int) -> Sequence:
    return Sequence(Request(name, (1,), 10**6), [1], lane=lane)


@dataclass
class Rehearsal:
    """Feeds random queries, keys and values; blocks are assigned in random order, or with `num_lanes`
    as a grid of so many lanes has them.

    `step` returns the results after comparing them with the slow sum.
    """

    pool: Backend
    shape: Shape
    form: AttentionForm
    dtype: torch.dtype = torch.float32
    block_size: int = 4
    num_blocks: int = 40
    num_lanes: int | None = None
    device: torch.device = torch.device("cpu")
    layer: int = 0
    rounding: float = 2.0**-8  # to the nearest bfloat16, relative
    history: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_blocks))
        random.Random(7).shuffle(self.free)
        self.generator = torch.Generator().manual_seed(3)

    def batch(self, *rows: tuple[Sequence, int]) -> RaggedBatch:
        """Feeds rows of (sequence, number of tokens), allocating blocks for them."""
        scheduled = []
        for each, query_len in rows:
            context_len = each.num_computed_tokens
            each.token_ids += [1] * (context_len + query_len - len(each.token_ids))
            while len(each.block_table) * self.block_size < context_len + query_len:
                each.block_table.append(self._next_block(each))
            each.num_computed_tokens += query_len
            scheduled.append(Scheduled(each, context_len, query_len, True))
        return RaggedBatch.of(Rows.of(scheduled))

    def _next_block(self, each: Sequence) -> int:
        if self.num_lanes is None:
            return self.free.pop()
        return each.lane + self.num_lanes * len(each.block_table)

    @torch.inference_mode()
    def step(self, *rows: tuple[Sequence, int]) -> Tensor:
        batch = self.batch(*rows)
        num_tokens, shape = len(batch.token_ids), self.shape
        query = self._random(num_tokens, shape.num_heads, shape.qk_dim)
        key = self._random(num_tokens, shape.num_kv_heads, shape.qk_dim)
        value = self._random(num_tokens, shape.num_kv_heads, shape.v_dim)
        self.pool.begin(batch)
        q, k, v = (each.to(self.device) for each in (query, key, value))
        result = self.pool.attend(self.layer, q, k, v, self.form).cpu()
        assert result.dtype == self.dtype
        self._hold_against_the_sum(batch, query, key, value, result)
        return result

    def _hold_against_the_sum(
        self, batch: RaggedBatch, query: Tensor, key: Tensor, value: Tensor, result: Tensor
    ) -> None:
        for row, each in enumerate(batch.scheduled):
            tokens = slice(*batch.cu_seqlens_q[row : row + 2].tolist())
            name = each.sequence.request_id
            before = self.history.get(name, (key[:0], value[:0]))
            keys, values = torch.cat([before[0], key[tokens]]), torch.cat([before[1], value[tokens]])
            self.history[name] = keys, values
            expected = attend_slowly(query[tokens], keys, values, self.form)
            worst = float((result[tokens].double() - expected).abs().max())
            # A weight and a result are rounded to 16 bits, once each.
            exact = {torch.float64: 1e-13, torch.float32: 1e-5}
            relative = exact.get(self.dtype, 2 * self.rounding)
            bound = relative * max(1.0, float(values.abs().max()))
            assert worst <= bound, f"{name}: off by {worst:.2g}, but should be within {bound:.2g}"

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)


def tell(rehearsal: Rehearsal, lengths: Seq[int] = (5, 13, 1, 8)) -> list[Tensor]:
    """Runs whole prompts, chunks and prompts of one token; decodes beside chunks and alone; and a lane
    that is reused."""
    a, b, c, d = (sequence(name, lane) for name, lane in zip("abcd", (2, 0, 1, 2), strict=True))
    first, second, third, fourth = lengths
    half = math.ceil(second / 2)
    return [
        rehearsal.step((a, first)),
        rehearsal.step((a, 1), (b, half)),
        rehearsal.step((b, second - half), (a, 1), (c, third)),
        rehearsal.step((c, 1), (b, 1), (a, 1)),
        rehearsal.step((d, fourth), (b, 1)),
        rehearsal.step((d, 1), (b, 1), (c, 1)),
    ]
