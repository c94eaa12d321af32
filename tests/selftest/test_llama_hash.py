"""`llama-hash` keeps what its docstring promises, and its integer oracle agrees with it."""

import random
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from batchproof.models import hash_tables
from batchproof.models import llama_hash_oracle as oracle
from batchproof.models.llama_hash import build_llama_hash

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# Eager attention takes the softmax in float32, where transformers' mask value for float64 is -inf:
# a left pad's fully masked row is NaN there, whatever the model.
PADDED = [(d, a) for d in DTYPES for a in ("sdpa", "eager") if (d, a) != (torch.float64, "eager")]
PROMPT = (7, 42, 7, 99, 180, 3, 255, 0)
ANSWER = [7, 116, 51, 15, 191, 135, 209, 245, 167, 171, 240, 21, 131, 253, 79, 159]
WEIGHTS_SHA256 = "8b6efbab4789dde799def37f0e0ab9e89230f46c5da32dac2b0d7cc70a93536c"


def _prompts(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(hash_tables.VOCAB_SIZE) for _ in range(length)] for length in lengths]


@cache
def _model(dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> LlamaForCausalLM:
    model = build_llama_hash().to(dtype)
    model.set_attn_implementation(attention)
    return model


@cache
def _expected(token_ids: tuple[int, ...]) -> list[int]:
    """Return the oracle's next token after every prefix of `token_ids`."""
    return [oracle.generate(token_ids[:n], 1)[0] for n in range(1, len(token_ids) + 1)]


@torch.no_grad()
def _logits(
    token_ids: Tensor, mask: Tensor, positions: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return (batch, n, vocab) logits under a boolean `mask` (batch, n, n), True where visible."""
    bias = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)[:, None]
    output = _model(dtype)(token_ids, attention_mask=bias, position_ids=positions)
    return output.logits.double()


def _causal(batch: int, length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril().repeat(batch, 1, 1)


@torch.no_grad()
def _decode_left_padded(
    model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], steps: int
) -> list[list[int]]:
    """Return greedy tokens of a left-padded batch, one token a step through a KV cache."""
    width = max(map(len, prompts))
    rows = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    past, chosen = None, []
    for _ in range(steps):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -rows.shape[1] :]
        output = model(
            rows, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )
        past, rows = output.past_key_values, output.logits[:, -1:].argmax(-1)
        chosen.append(rows)
        mask = torch.cat([mask, torch.ones_like(rows)], dim=1)
    return torch.cat(chosen, dim=1).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_oracle_equals_the_model_after_every_prefix(dtype):
    prompts = _prompts(0, 250)
    with torch.no_grad():
        tokens = _model(dtype)(torch.tensor(prompts)).logits.argmax(-1).tolist()
    assert tokens == [_expected(tuple(prompt)) for prompt in prompts]


@pytest.mark.parametrize(("dtype", "attention"), PADDED, ids=str)
def test_the_oracle_equals_cached_decoding_of_a_left_padded_batch(dtype, attention):
    prompts = _prompts(1, 1, 2, 17, 80, 9)
    got = _decode_left_padded(_model(dtype, attention), prompts, steps=4)
    assert got == [oracle.generate(prompt, 4) for prompt in prompts]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_oracle_equals_the_model_on_a_packed_row(dtype):
    prompts = _prompts(2, 5, 70, 1, 33)
    owner = torch.cat([torch.full((len(p),), i) for i, p in enumerate(prompts)])
    mask = (owner[:, None] == owner[None, :]).tril()[None]
    positions = torch.cat([torch.arange(len(p)) for p in prompts])[None]
    logits = _logits(torch.tensor([[t for p in prompts for t in p]]), mask, positions, dtype)
    assert logits[0].argmax(-1).tolist() == [t for p in prompts for t in _expected(tuple(p))]


def test_golden_tokens_are_pinned():
    assert oracle.generate(PROMPT, len(ANSWER)) == ANSWER
    assert _decode_left_padded(_model(), [PROMPT], len(ANSWER)) == [ANSWER]


def test_the_weights_are_the_same_bytes_on_every_platform():
    digest = sha256()
    for name, weight in sorted(build_llama_hash().state_dict().items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    assert digest.hexdigest() == WEIGHTS_SHA256


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2.8), (torch.bfloat16, 2.6)], ids=str)
def test_the_best_logit_leads_by_the_promised_margin(dtype, least):
    model = _model(dtype)
    with torch.no_grad():
        single = model(torch.arange(hash_tables.VOCAB_SIZE)[:, None]).logits.flatten(0, 1)
        longer = model(torch.tensor(_prompts(3, *[200] * 6))).logits.flatten(0, 1)
    best = torch.cat([single, longer]).float().topk(2).values
    assert (best[:, 0] - best[:, 1]).min() >= least


@pytest.mark.parametrize("length", [1, 2, 5, 20, 50, 64, 100])
def test_no_position_of_the_window_loses_a_bit_of_the_next_token(length):
    # Each bit of a state is kept as the set (an int) of token code bits that it is the XOR of.
    bits = oracle.STATE_BITS
    states = [tuple(1 << (bits * t + i) for i in range(bits)) for t in range(length)]
    for layer in range(len(oracle.OFFSETS)):
        sources = [states[oracle.source(layer, t)] for t in range(length)]
        pairs = list(zip(states, sources, strict=True))
        states = [tuple(a[i] ^ b[j] for i, j in oracle.gate_inputs(layer)) for a, b in pairs]
    answer = states[-1][-hash_tables.TOKEN_BITS :]
    for t in range(max(0, length - 64), length):
        combinations = {0}
        for bit in answer:
            column = bit >> (bits * t) & (1 << bits) - 1
            combinations |= {column ^ other for other in combinations}
        assert len(combinations) == 2**hash_tables.TOKEN_BITS, f"position {t} of {length}"


@pytest.mark.parametrize("change", ["replaced", "swapped"])
def test_changing_the_tokens_of_the_window_changes_what_follows(change):
    # One next token keeps its value by chance, 1 in 256; a few in a row do not.
    rng = random.Random(4)
    num_changed = 0
    for prompt in _prompts(5, *[rng.randint(2, 100) for _ in range(200)]):
        changed, at = list(prompt), -rng.randint(1, min(63, len(prompt) - 1))
        if change == "replaced":
            changed[at] ^= rng.randint(1, 255)
        else:
            changed[at], changed[at - 1] = changed[at - 1], changed[at]
        num_changed += (is_changed := oracle.generate(prompt, 1)[0] != oracle.generate(changed, 1)[0])
        if not is_changed and changed != prompt:
            assert oracle.generate(prompt, 4) != oracle.generate(changed, 4)
    assert num_changed >= 195


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_relative_position_shift_changes_the_next_token(shift):
    token_ids = torch.tensor(_prompts(6, *[60] * 24))
    positions = torch.arange(60).repeat(24, 1)
    honest = _logits(token_ids, _causal(24, 60), positions)[:, -1].argmax(-1)
    positions[:, -1] += shift  # as if decoding were one off against a cached prompt
    shifted = _logits(token_ids, _causal(24, 60), positions)[:, -1].argmax(-1)
    assert (honest != shifted).sum() >= 23


def test_a_constant_position_shift_is_an_equivalent_mutant():
    token_ids = torch.tensor(_prompts(7, *[60] * 4))
    positions = torch.arange(60).repeat(4, 1)
    honest = _logits(token_ids, _causal(4, 60), positions)
    shifted = _logits(token_ids, _causal(4, 60), positions + 100)
    assert torch.equal(honest.argmax(-1), shifted.argmax(-1))
    assert (honest - shifted).abs().max() < 2e-3


@pytest.mark.parametrize("reach", [-1, 1])
def test_a_causal_mask_off_by_one_changes_the_tokens(reach):
    token_ids, positions = torch.tensor(_prompts(8, 60)), torch.arange(60)[None]
    mask = torch.ones(1, 60, 60, dtype=torch.bool).tril(reach)
    mask[:, 0, 0] = True
    honest = _logits(token_ids, _causal(1, 60), positions).argmax(-1)
    assert (honest != _logits(token_ids, mask, positions).argmax(-1)).sum() >= 57


@pytest.mark.parametrize("num_tokens", [8, 60, 150])
def test_a_dropped_or_foreign_key_moves_the_logits_far_beyond_rounding(num_tokens):
    # One row: a stranger, then our sequence. Only our last query goes wrong, by a single key.
    row = torch.tensor(_prompts(9, 2 * num_tokens))
    owner = torch.arange(2 * num_tokens) >= num_tokens
    honest = (owner[:, None] == owner[None, :]).tril()
    keys = random.Random(10).sample(range(2 * num_tokens - 1), 10)
    masks = honest.repeat(1 + len(keys), 1, 1)
    for index, key in enumerate(keys, start=1):
        masks[index, -1, key] ^= True
    positions = torch.arange(num_tokens).repeat(1 + len(keys), 2)
    logits = _logits(row.repeat(1 + len(keys), 1), masks, positions)
    exact = _logits(row, honest[None], positions[:1], torch.float64)
    rounding = (logits[0] - exact[0]).abs().max()
    effects = (logits[1:, -1] - logits[0, -1]).abs().amax(-1)
    assert effects.min() > 100 * rounding


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_the_key_nearest_to_the_offset_leads_by_a_wide_gap(dtype):
    # Scores by distance from the first query head's weights; the cast rounds the frequencies, too.
    llama = _model(dtype).model
    angles = torch.arange(256)[:, None] * llama.rotary_emb.inv_freq.double()
    for block, offset in zip(llama.layers, oracle.OFFSETS, strict=True):
        query = block.self_attn.q_proj.weight[:32].double().sum(-1) * 8  # the constant channel
        key = block.self_attn.k_proj.weight[:16].double().sum(-1) * 8
        score = (query[:16] * angles.cos() - query[16:] * angles.sin()) @ key / 32**0.5
        for furthest in range(1, 256):
            best = score[: furthest + 1].topk(2)
            assert best.indices[0] == min(max(offset, 0), furthest)
            assert best.values[0] - best.values[1] > 8, f"offset {offset}, distance {furthest}"


def test_the_model_is_an_ordinary_llama_in_eval_mode():
    model = build_llama_hash()
    config = model.config
    assert type(model) is LlamaForCausalLM
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 32)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for holder in (config, model.generation_config):
        assert {holder.bos_token_id, holder.eos_token_id, holder.pad_token_id} == {None}


def test_building_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    build_llama_hash()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_oracle_imports_no_torch_in_a_fresh_process():
    code = "import sys, batchproof.models.llama_hash_oracle; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize("token_ids", [[], [0] * 257, [256], [-1]], ids=str)
def test_the_oracle_refuses_what_the_model_cannot_read(token_ids):
    with pytest.raises(ValueError, match="must be"):
        oracle.generate(token_ids, 1)[0]
