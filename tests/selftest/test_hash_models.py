"""`gpt2-hash` and `llama-hash` keep what their docstrings promise: no neighbour, no shift and no lost
key goes unseen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from batchproof.models import hash_tables
from batchproof.models import llama_hash_oracle as llama
from batchproof.models.catalogue import moved
from batchproof.models.embedded import EMBEDDED

NAMES = ("gpt2-hash", "llama-hash")
WINDOWS = {"gpt2-hash": 128, "llama-hash": 64}  # the last tokens that count
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Eager attention takes the softmax in float32, where transformers' mask value for float64 is -inf:
# a left pad's fully masked row is NaN there, whatever the model.
PADDED = [(d, a) for d in DTYPES for a in ("sdpa", "eager") if (d, a) != (torch.float64, "eager")]

by_name = pytest.mark.parametrize("name", NAMES)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(hash_tables.VOCAB_SIZE) for _ in range(length)] for length in lengths]


@cache
def model(name: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    built = moved(EMBEDDED[name].build(), "cpu", dtype)
    built.set_attn_implementation(attention)
    return built


def generate(name: str, prompt: Sequence[int], num_tokens: int = 1) -> list[int]:
    oracle = EMBEDDED[name].oracle
    assert oracle is not None
    return list(oracle(prompt, num_tokens))


@torch.no_grad()
def logits(
    name: str, token_ids: Tensor, mask: Tensor, positions: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Returns (batch, n, vocab) logits under a boolean `mask` (batch, n, n), True where visible."""
    bias = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)[:, None]
    given = {"attention_mask": bias, "position_ids": positions}
    return model(name, dtype)(token_ids, **given).logits.double()


def causal(batch: int, length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril().repeat(batch, 1, 1)


@torch.no_grad()
def decode_left_padded(served: Any, batch: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
    """Returns greedy tokens of a left-padded batch, one token a step through a KV cache."""
    width = max(map(len, batch))
    rows = torch.tensor([[0] * (width - len(p)) + list(p) for p in batch])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
    past, chosen = None, []
    for _ in range(steps):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -rows.shape[1] :]
        given = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
        output = served(rows, past_key_values=past, **given)
        past, rows = output.past_key_values, output.logits[:, -1:].argmax(-1)
        chosen.append(rows)
        mask = torch.cat([mask, torch.ones_like(rows)], dim=1)
    return torch.cat(chosen, dim=1).tolist()


@by_name
@pytest.mark.parametrize(("dtype", "attention"), PADDED, ids=str)
def test_the_oracle_equals_cached_decoding_of_a_left_padded_batch(
    name: str, dtype: torch.dtype, attention: str
) -> None:
    longest = 244 if dtype is torch.float32 else 80  # 16 bit is slow on a CPU
    batch = prompts(1, 1, 2, 17, longest, 9)
    got = decode_left_padded(model(name, dtype, attention), batch, steps=4)
    assert got == [generate(name, prompt, 4) for prompt in batch]


@by_name
@by_dtype
def test_the_oracle_equals_the_model_on_a_packed_row(name: str, dtype: torch.dtype) -> None:
    batch = prompts(2, 5, 70, 1, 33)
    owner = torch.cat([torch.full((len(p),), i) for i, p in enumerate(batch)])
    mask = (owner[:, None] == owner[None, :]).tril()[None]
    positions = torch.cat([torch.arange(len(p)) for p in batch])[None]
    packed = torch.tensor([[token for p in batch for token in p]])
    found = logits(name, packed, mask, positions, dtype)[0].argmax(-1).tolist()
    assert found == [generate(name, p[:n])[0] for p in batch for n in range(1, len(p) + 1)]


@pytest.mark.parametrize(
    ("name", "dtype", "least"),
    [
        ("gpt2-hash", torch.float32, 2.8),
        ("llama-hash", torch.float32, 2.4),
        ("llama-hash", torch.bfloat16, 2.2),
    ],
)
@torch.inference_mode()
def test_the_best_logit_leads_by_the_promised_margin(
    name: str, dtype: torch.dtype, least: float
) -> None:
    """Short contexts have the smallest margins: averages over few keys are large."""
    every_token = torch.arange(hash_tables.VOCAB_SIZE)[:, None]
    for batch in (
        every_token,
        torch.tensor(prompts(3, *[3] * 1000)),
        torch.tensor(prompts(3, 256, 256)),
    ):
        best = model(name, dtype)(batch).logits.float().topk(2).values
        assert (best[..., 0] - best[..., 1]).min() >= least


@pytest.mark.parametrize("length", [1, 2, 5, 20, 50, 64, 100])
def test_no_position_of_the_window_loses_a_bit_of_the_next_token(length: int) -> None:
    # Each bit of a state is kept as the set (an int) of token code bits that it is the XOR of.
    bits = llama.STATE_BITS
    states = [tuple(1 << (bits * t + i) for i in range(bits)) for t in range(length)]
    for layer in range(len(llama.OFFSETS)):
        sources = [states[llama.source(layer, t)] for t in range(length)]
        pairs = list(zip(states, sources, strict=True))
        states = [tuple(a[i] ^ b[j] for i, j in llama.gate_inputs(layer)) for a, b in pairs]
    answer = states[-1][-hash_tables.TOKEN_BITS :]
    for t in range(max(0, length - 64), length):
        combinations = {0}
        for bit in answer:
            column = bit >> (bits * t) & (1 << bits) - 1
            combinations |= {column ^ other for other in combinations}
        assert len(combinations) == 2**hash_tables.TOKEN_BITS, f"position {t} of {length}"


@by_name
@pytest.mark.parametrize("change", ["replaced", "swapped"])
def test_changing_the_tokens_of_the_window_changes_what_follows(name: str, change: str) -> None:
    # One next token keeps its value by chance, 1 in 256; a few in a row do not.
    rng = random.Random(4)
    num_changed = 0
    for prompt in prompts(5, *[rng.randint(2, 128) for _ in range(200)]):
        changed, at = list(prompt), -rng.randint(1, min(WINDOWS[name] - 1, len(prompt) - 1))
        if change == "replaced":
            changed[at] ^= rng.randint(1, 255)
        else:
            changed[at], changed[at - 1] = changed[at - 1], changed[at]
        num_changed += (is_changed := generate(name, prompt) != generate(name, changed))
        if not is_changed and changed != prompt:
            assert generate(name, prompt, 4) != generate(name, changed, 4)
    assert num_changed >= 195


@by_name
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_relative_position_shift_changes_the_next_token(name: str, shift: int) -> None:
    token_ids = torch.tensor(prompts(6, *[60] * 24))
    positions = torch.arange(60).repeat(24, 1)
    honest = logits(name, token_ids, causal(24, 60), positions)[:, -1].argmax(-1)
    positions[:, -1] += shift  # as if decoding were one off against a cached prompt
    shifted = logits(name, token_ids, causal(24, 60), positions)[:, -1].argmax(-1)
    assert (honest != shifted).sum() >= 23


@by_name
def test_a_constant_position_shift_is_seen_where_positions_are_absolute_alone(name: str) -> None:
    """With RoPE it is an equivalent mutant."""
    token_ids = torch.tensor(prompts(7, *[60] * 24))
    positions = torch.arange(60).repeat(24, 1)
    honest = logits(name, token_ids, causal(24, 60), positions)
    shifted = logits(name, token_ids, causal(24, 60), positions + 100)
    if name == "gpt2-hash":
        assert (honest[:, -1].argmax(-1) != shifted[:, -1].argmax(-1)).sum() >= 23
    else:
        assert torch.equal(honest.argmax(-1), shifted.argmax(-1))
        assert (honest - shifted).abs().max() < 2e-3


@by_name
@pytest.mark.parametrize("reach", [-1, 1])
def test_a_causal_mask_off_by_one_changes_the_tokens(name: str, reach: int) -> None:
    token_ids, positions = torch.tensor(prompts(8, 60)), torch.arange(60)[None]
    mask = torch.ones(1, 60, 60, dtype=torch.bool).tril(reach)
    mask[:, 0, 0] = True
    honest = logits(name, token_ids, causal(1, 60), positions).argmax(-1)
    assert (honest != logits(name, token_ids, mask, positions).argmax(-1)).sum() >= 57


@by_name
@pytest.mark.parametrize("num_tokens", [2, 8, 60, 128])
def test_a_dropped_or_foreign_key_moves_the_logits_far_beyond_rounding(
    name: str, num_tokens: int
) -> None:
    """One row: a stranger, then our sequence. Only our last query goes wrong, by a single key."""
    row = torch.tensor(prompts(9, 2 * num_tokens))
    owner = torch.arange(2 * num_tokens) >= num_tokens
    honest = (owner[:, None] == owner[None, :]).tril()
    keys = random.Random(10).sample(range(2 * num_tokens - 1), min(10, 2 * num_tokens - 1))
    masks = honest.repeat(1 + len(keys), 1, 1)
    for index, key in enumerate(keys, start=1):
        masks[index, -1, key] ^= True
    positions = torch.arange(num_tokens).repeat(1 + len(keys), 2)
    found = logits(name, row.repeat(1 + len(keys), 1), masks, positions)
    exact = logits(name, row, honest[None], positions[:1], torch.float64)
    rounding = (found[0] - exact[0]).abs().max()
    effects = (found[1:, -1] - found[0, -1]).abs().amax(-1)
    assert effects.min() > 100 * rounding


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_the_key_nearest_to_the_offset_leads_by_a_wide_gap(dtype: torch.dtype) -> None:
    # Scores by distance from the first query head's weights; the cast rounds the frequencies, too.
    inner = model("llama-hash", dtype).model
    angles = torch.arange(256)[:, None] * inner.rotary_emb.inv_freq.double()
    for block, offset in zip(inner.layers, llama.OFFSETS, strict=True):
        query = block.self_attn.q_proj.weight[:32].double().sum(-1) * 8  # the constant channel
        key = block.self_attn.k_proj.weight[:16].double().sum(-1) * 8
        score = (query[:16] * angles.cos() - query[16:] * angles.sin()) @ key / 32**0.5
        for furthest in range(1, 256):
            best = score[: furthest + 1].topk(2)
            assert best.indices[0] == min(max(offset, 0), furthest)
            assert best.values[0] - best.values[1] > 8, f"offset {offset}, distance {furthest}"
