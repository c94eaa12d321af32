"""`bamba-hash` keeps what its docstring promises: it computes its oracle's tokens however a prompt is
fed, and no fault of a recurrent state goes unseen."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from batchproof.models import bamba_hash_oracle as oracle
from batchproof.models.bamba_hash import CHUNK_SIZE
from batchproof.models.bamba_hash_stream import BITS, CONSTANT, WORDS
from tests.selftest.recurrent_state import (
    RECURRENT_FAULTS,
    Fault,
    empty_cache,
    feed,
    keys_lost,
    layers_of,
    model,
    state_behind,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HIGHEST = (15, 56)
"""Repeated to the end, they bring a word to 256, in the first pair of layers and in the second."""
ROWS, LENGTH = 24, 40
"""Of the batches that meet faults."""

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


def answers(token_ids: Sequence[int]) -> list[int]:
    """Returns the right next token behind every token."""
    return list(map(oracle.reader(), token_ids))


def decode(state: DynamicCache, logits: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Returns the next `count` greedy tokens (rows, count), one at a time, the first from `logits`."""
    chosen = [logits[:, -1:].argmax(-1)]
    while len(chosen) < count:
        chosen.append(feed(state, chosen[-1], dtype).argmax(-1))
    return torch.cat(chosen, dim=1)


@cache
def batches() -> list[tuple[Tensor, Tensor]]:
    """Returns token ids (rows, n) and the right token behind each.

    Repeated tokens make the highest counts, and the shortest contexts the largest averages.
    """
    found = []
    for batch in ([*prompts(1, 256), *([token] * 256 for token in HIGHEST)], prompts(1, *[3] * 100)):
        found.append((torch.tensor(batch), torch.tensor(list(map(answers, batch)))))
    return found


@by_dtype
def test_one_pass_gives_the_oracles_tokens_by_the_promised_margin(dtype: torch.dtype) -> None:
    for tokens, right in batches():
        found = model(dtype)(tokens).logits.double().topk(2)
        assert torch.equal(found.indices[..., 0], right)
        assert (found.values[..., 0] - found.values[..., 1]).min() >= 3


def test_counts_get_as_high_as_16_bits_hold_and_no_higher() -> None:
    seen: list[Tensor] = []
    norms = [block.pre_ff_layernorm for block in model().model.layers]
    hooks = [norm.register_forward_hook(lambda *given: seen.append(given[-1])) for norm in norms]
    model()(torch.tensor([[token] * 256 for token in HIGHEST]), use_cache=False)
    for hook in hooks:
        hook.remove()
    words = torch.stack(seen)[..., WORDS]
    assert 255.9 < words.max() < 256.1
    assert (words - words.round()).abs().max() < 0.1  # steps are flat within 0.25


@by_dtype
def test_chunks_and_cached_decoding_give_the_oracles_tokens(dtype: torch.dtype) -> None:
    batch = prompts(2, *[75] * 5)
    state, tokens = empty_cache(), torch.tensor(batch)
    chunks = (1, 2, 1, 1, CHUNK_SIZE, CHUNK_SIZE + 3, 2 * CHUNK_SIZE, 3)
    ends = list(accumulate(chunks))
    for begin, end in pairwise([0, *ends]):
        logits = feed(state, tokens[:, begin:end], dtype)
    assert end == len(batch[0])
    found = decode(state, logits, 6, dtype).tolist()
    assert found == [oracle.generate(prompt, 6) for prompt in batch]


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float16], ids=str)
def test_an_engine_that_keeps_the_state_in_16_bits_changes_no_token(kept: torch.dtype) -> None:
    batch = [*prompts(8, 250), *([token] * 250 for token in HIGHEST)]
    state, chosen = empty_cache(), torch.tensor(batch)
    for _ in range(3):
        chosen = feed(state, chosen)[:, -1:].argmax(-1)
        for layer in layers_of(state, (0, 2)):
            layer.recurrent_states[0].copy_(layer.recurrent_states[0].to(kept))
    assert chosen[:, 0].tolist() == [oracle.generate(prompt, 3)[-1] for prompt in batch]


@by_dtype
def test_a_left_padded_batch_gives_the_oracles_tokens(dtype: torch.dtype) -> None:
    batch = prompts(3, 1, 2, 4, 17, 33)
    rows = torch.tensor([[0] * (33 - len(p)) + p for p in batch])
    mask = torch.tensor([[0] * (33 - len(p)) + [1] * len(p) for p in batch])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = model(dtype)(rows, attention_mask=mask, position_ids=positions).logits[:, -1]
    assert found.argmax(-1).tolist() == [oracle.generate(prompt, 1)[0] for prompt in batch]


@pytest.mark.parametrize("change", ["replaced", "swapped", "two chunks swapped"])
def test_a_changed_prompt_changes_what_follows_for_ever(change: str) -> None:
    """The same 80 tokens follow in both sequences: nothing but the states tells of the change."""
    rng = random.Random(4)
    before, after = prompts(5, *[32] * 30), prompts(6, *[80] * 30)
    changed = copy.deepcopy(before)
    for prompt in changed:
        at = rng.randrange(31)
        if change == "replaced":
            prompt[at] ^= rng.randint(1, 255)
        elif change == "swapped":
            prompt[at], prompt[at + 1] = prompt[at + 1], prompt[at]
        else:
            prompt[:16] = prompt[8:16] + prompt[:8]
    one, other = (
        torch.tensor([[*start, *end] for start, end in zip(starts, after, strict=True)])
        for starts in (before, changed)
    )
    is_seen = (model()(one).logits.argmax(-1) != model()(other).logits.argmax(-1))[:, 31:]
    assert is_seen[:, 0].sum() >= 26
    assert is_seen[:, :4].any(1).sum() >= 29
    assert is_seen[:, -4:].any(1).sum() >= 29


FAULTS = [(fault, layers, 20) for fault in RECURRENT_FAULTS for layers in ((0,), (2,))]
# What the last layer attends to reaches no state: only a fault within its reach shows.
FAULTS += [(keys_lost, (1,), 20), (keys_lost, (3,), 1)]


@cache
def rows_that_meet_faults() -> tuple[Tensor, Tensor]:
    """Returns token ids (ROWS, LENGTH), and the right token behind each."""
    batch = prompts(6, *[LENGTH] * ROWS)
    return torch.tensor(batch), torch.tensor(list(map(answers, batch)))


def changed_rows(fault: Fault | None, layers: tuple[int, ...], behind: int) -> int:
    """Returns how many rows answer one of the last six tokens wrong, `behind` tokens after a fault."""
    tokens, right = rows_that_meet_faults()
    state = state_behind(tokens[:, :-behind])
    if fault is not None:
        fault(state, tokens[:, :-behind], layers)
    found = feed(state, tokens[:, -behind:]).argmax(-1)
    return int((found != right[:, -behind:])[:, -6:].any(1).sum())


def test_no_fault_no_change() -> None:
    assert changed_rows(None, (), 20) == 0


@pytest.mark.parametrize(
    ("fault", "layers", "behind"), FAULTS, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_a_fault_once_changes_the_tokens_of_nearly_every_row(
    fault: Fault, layers: tuple[int, ...], behind: int
) -> None:
    assert changed_rows(fault, layers, behind) >= ROWS - 1


@pytest.mark.parametrize("length", [8, 60, 200])
def test_a_wrong_key_or_a_state_a_tenth_off_moves_the_logits_beyond_rounding(length: int) -> None:
    tokens = torch.tensor(prompts(7, *[length] * 8))
    state = state_behind(tokens[:, :-1])
    wrong_key, blurred = copy.deepcopy(state), copy.deepcopy(state)
    for layer in layers_of(wrong_key, (1,)):
        layer.values[:, :, length // 3] = layer.values[:, :, length // 3].roll(1, 0)
    for layer in layers_of(blurred, (0, 2)):
        layer.recurrent_states[0].mul_(1.1)
    found, *wrong = (feed(each, tokens[:, -1:]) for each in (state, wrong_key, blurred))
    exact = model(torch.float64)(tokens).logits[:, -1:]
    rounding = (found - exact).abs().max()
    for each in wrong:
        assert (each - found).abs().amax(-1).median() > 5 * rounding
    assert (wrong[0] - found).abs().amax(-1).min() > 5 * rounding


@by_dtype
def test_the_key_at_the_offset_leads_by_a_wide_gap(dtype: torch.dtype) -> None:
    # Scores by distance from the hard head's weights; the cast rounds the frequencies, too.
    inner = model(dtype).model
    angles = torch.arange(256)[:, None] * inner.rotary_emb.inv_freq.double()
    for block, offset in zip(inner.layers[1::2], oracle.OFFSETS, strict=True):
        query = block.self_attn.q_proj.weight[:BITS, CONSTANT].double()
        key = block.self_attn.k_proj.weight[: BITS // 2, CONSTANT].double()
        turned = query[: BITS // 2] * angles.cos() - query[BITS // 2 :] * angles.sin()
        score = turned @ key / block.self_attn.head_dim**0.5
        assert score[0] > -15
        for furthest in range(1, 256):
            best = score[: furthest + 1].topk(2)
            assert best.indices[0] == min(offset, furthest)
            assert best.values[0] - best.values[1] > 15, f"offset {offset}, distance {furthest}"
