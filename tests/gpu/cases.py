"""Random attention cases of unusual shapes: a seed determines a case, on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import LayerCache
from tests.selftest.paged.rehearsal import Shape

DTYPES = (torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 80, 96, 128, 256, 16, 40, 72, 112, 192)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 32)
BLOCK_SIZES = (1, 2, 3, 7, 12, 16, 16, 48, 32, 64, 256)
MAX_HEADS, MAX_LEN = 32, 300
UNREADABLE = 10**6  # a block that no pool has: reading an entry after a row's end must fail
TRASH_BLOCK = 0


@dataclass
class Case:
    """Sequences in a pool of blocks; unused cells are NaN.

    `keys` and `values` are those of each sequence, on the CPU.
    """

    name: str
    shape: Shape
    form: AttentionForm  # its sinks on the device
    dtype: torch.dtype
    cache: LayerCache
    tables: Tensor  # (num_lanes + 1, columns) int32, on the device
    lanes: list[int]
    seq_lens: list[int]
    slots: list[list[int]]  # of each sequence's tokens, cells of the flattened pool
    keys: list[Tensor]
    values: list[Tensor]
    generator: torch.Generator
    choice: random.Random = field(repr=False)

    @property
    def device(self) -> torch.device:
        return self.tables.device

    def forget(self, sequence: int, context_len: int) -> None:
        """Clears the cells of a sequence's tokens from `context_len` on."""
        slots = torch.tensor(self.slots[sequence][context_len:], dtype=torch.int64, device=self.device)
        for cells in (self.cache.keys, self.cache.values):
            cells.view(-1, *cells.shape[2:])[slots] = float("nan")

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def as_a_model_makes_it(self, tokens: Tensor) -> Tensor:
        """Returns (T, heads, dim) on the device, strided by heads first or as part of a product."""
        if self.choice.random() < 0.5:
            return tokens.to(self.device).transpose(0, 1).contiguous().transpose(0, 1)
        return torch.cat([tokens, tokens], dim=1).to(self.device)[:, : tokens.shape[1]]


def make_case(seed: int, device: torch.device, reads_whole_tables: bool = False) -> Case:
    """Returns the case of a seed; `reads_whole_tables` is for kernels that read past a row's end."""
    choice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = choice.choice(DTYPES)
    qk_dim = choice.choice(HEAD_DIMS)
    v_dim = choice.choice((qk_dim, qk_dim, qk_dim, 128, 48))
    group, num_kv_heads = choice.choice(GROUPS), choice.choice((1, 2, 3, 8))
    shape = Shape(num_kv_heads if num_kv_heads * group <= MAX_HEADS else 1, group, qk_dim, v_dim)
    block_size = choice.choice(BLOCK_SIZES)
    sinks = choice.choice((None, None, torch.randn(shape.num_heads, generator=generator).to(dtype)))
    form = AttentionForm(
        scaling=qk_dim**-0.5 * choice.choice((1, 3)),
        window=choice.choice((None, None, None, 1, 2, block_size, block_size + 1, 37)),
        softcap=choice.choice((None, None, 20.0)),
        sinks=None if sinks is None else sinks.to(device),
    )
    edges = (block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1)
    lengths = (1, *edges, 64, 65, 128, 129, choice.randint(1, 150))
    seq_lens = [min(MAX_LEN, max(1, choice.choice(lengths))) for _ in range(choice.randint(1, 4))]
    lanes = choice.sample(range(len(seq_lens) + 2), len(seq_lens))
    case = Case(
        name=f"case {seed}: {dtype}, {shape}, blocks of {block_size}, window {form.window}, softcap "
        f"{form.softcap}, {'sinks, ' if sinks is not None else ''}lengths {seq_lens}",
        shape=shape,
        form=form,
        dtype=dtype,
        cache=_empty_cache(shape, block_size, seq_lens, dtype, device),
        tables=torch.empty(0),
        lanes=lanes,
        seq_lens=seq_lens,
        slots=[],
        keys=[],
        values=[],
        generator=generator,
        choice=choice,
    )
    _fill(case, block_size, TRASH_BLOCK if reads_whole_tables else UNREADABLE)
    return case


def _empty_cache(
    shape: Shape, block_size: int, seq_lens: Sequence[int], dtype: torch.dtype, device: torch.device
) -> LayerCache:
    num_blocks = 3 + sum(-(-each // block_size) for each in seq_lens)
    keys, values = (
        torch.full(
            (num_blocks, block_size, shape.num_kv_heads, dim), float("nan"), dtype=dtype, device=device
        )
        for dim in (shape.qk_dim, shape.v_dim)
    )
    return LayerCache(keys, values)


def _fill(case: Case, block_size: int, behind_end: int) -> None:
    """Stores the keys and values of all tokens, in blocks of random order."""
    device = case.cache.keys.device
    free = list(range(TRASH_BLOCK + 1, len(case.cache.keys)))
    case.choice.shuffle(free)
    longest = max(-(-each // block_size) for each in case.seq_lens)
    num_lanes = len(case.seq_lens) + 2
    tables = torch.full((num_lanes + 1, longest + case.choice.randint(0, 2)), behind_end)
    tables[num_lanes] = TRASH_BLOCK
    for lane, seq_len in zip(case.lanes, case.seq_lens, strict=True):
        blocks = [free.pop() for _ in range(-(-seq_len // block_size))]
        tables[lane, : len(blocks)] = torch.tensor(blocks)
        slots = [blocks[p // block_size] * block_size + p % block_size for p in range(seq_len)]
        keys = case.random(seq_len, case.shape.num_kv_heads, case.shape.qk_dim)
        values = case.random(seq_len, case.shape.num_kv_heads, case.shape.v_dim)
        for cells, tokens in ((case.cache.keys, keys), (case.cache.values, values)):
            cells.view(-1, *cells.shape[2:])[torch.tensor(slots, device=device)] = tokens.to(device)
        case.slots.append(slots)
        case.keys.append(keys)
        case.values.append(values)
    case.tables = tables.to(torch.int32).to(device)
