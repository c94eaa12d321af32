"""The embedded models are what their docstrings say on every machine, and the constructed ones agree
with their integer oracles."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
import torch

from batchproof.models.catalogue import moved
from batchproof.models.embedded import EMBEDDED
from batchproof.models.gpt2_hash_oracle import generate as gpt2_hash_tokens
from batchproof.models.gpt2_long_oracle import generate, sources
from batchproof.models.random_models import WINDOW as RANDOM_WINDOW
from batchproof.models.random_models import build_mistral_window
from batchproof.models.window_hash import build_mistral_hash, build_mixtral_hash
from batchproof.models.window_hash_oracle import WINDOW
from batchproof.oracle.coarse import ROUNDED_ATTENTION, _register
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S
from tests.selftest.conftest import LaboratoryFor

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INT8 = "int8"  # keys and values in 8 bits
SHORT, LONG = ("gpt2-hash", "llama-hash"), ("gpt2-long", "mistral-hash", "mixtral-hash")
# transformers' experts know no float64.
WAYS = [
    (name, dtype, attention) for name in SHORT for dtype in DTYPES for attention in ("sdpa", "eager")
]
WAYS += [(name, d, each) for name in LONG for d in DTYPES[1:] for each in ("sdpa", "eager", INT8)]
LENS = (1, 8, 9, 64, 129)  # the first is answered with 200 tokens, so that all lengths are met
PROMPT = tuple(b"golden tokens")
WEIGHTS_SHA256 = {
    "llama-hash": "8b6efbab4789dde799def37f0e0ab9e89230f46c5da32dac2b0d7cc70a93536c",
    "bamba-hash": "5ad950894db2a3518007b493b8d9ed8adc5f551af7bfeeddc76446a5253b9f01",
}
GOLDEN = {
    "gpt2-hash": [101, 153, 34, 247, 18, 140, 41, 90, 83, 47, 150, 127],
    "llama-hash": [230, 136, 159, 239, 24, 97, 187, 173, 98, 37, 169, 138],
    "gpt2-random": [138, 204, 92, 13, 92, 9, 173, 39, 251, 251, 122, 173],
    "llama-random": [41, 111, 86, 132, 223, 134, 19, 17, 132, 189, 126, 123],
    "mistral-window": [108, 101, 18, 75, 222, 98, 184, 80, 54, 29, 51, 190],
}


@pytest.mark.parametrize(("name", "dtype", "attention"), WAYS, ids=str)
def test_every_step_agrees_with_the_integer_oracle(
    name: str, dtype: torch.dtype, attention: str
) -> None:
    """The first token has all bits set: large sums."""
    _register()
    entry, rng = EMBEDDED[name], random.Random(0)
    model = moved(entry.build(), "cpu", dtype)
    model.set_attn_implementation(ROUNDED_ATTENTION if attention == INT8 else attention)
    is_quick = dtype is torch.float32 and attention == "sdpa"
    context = model.config.max_position_embeddings
    longer = (1000, context - 5) if context > 1000 and is_quick else ()
    assert entry.oracle is not None
    for length in (*LENS, *longer):
        prompt = [255] + [rng.randrange(256) for _ in range(length - 1)]
        answer = entry.oracle(prompt, 200 if length == 1 else 6)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, length - 1 :]
        best = logits.float().topk(2)
        assert best.indices[:, 0].tolist() == answer, f"prompt of {length} tokens"
        assert (best.values[:, 0] - best.values[:, 1]).min() >= (3.5 if name in LONG else 2.3)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tokens_are_pinned(name: str, laboratory_for: LaboratoryFor) -> None:
    """Wide margins, so that no other kernel can flip them."""
    oracle = laboratory_for(DEFAULT_TIME_LIMIT_S).oracle(name)
    answer = oracle.answer(PROMPT, 12)
    assert list(answer.token_ids) == list(oracle.right_tokens(PROMPT, 12)) == GOLDEN[name]
    assert min(answer.margin(step) for step in range(12)) > 1000 * oracle.error.max_abs


@pytest.mark.parametrize("name", WEIGHTS_SHA256)
def test_the_weights_are_the_same_bytes_on_every_platform(name: str) -> None:
    digest = sha256()
    for part, weight in sorted(EMBEDDED[name].build().state_dict().items()):
        digest.update(part.encode() + weight.numpy().tobytes())
    assert digest.hexdigest() == WEIGHTS_SHA256[name]


@pytest.mark.parametrize("name", EMBEDDED)
def test_building_a_model_makes_it_whole_and_touches_no_global_state(name: str) -> None:
    before, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    model = EMBEDDED[name].build()
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_default_dtype() is dtype
    assert not model.training
    for holder in (model.config, model.generation_config):
        assert {holder.bos_token_id, holder.eos_token_id, holder.pad_token_id} == {None}
    for part, tensor in (*model.named_parameters(), *model.named_buffers()):
        found = (tensor.device.type, tensor.dtype, tensor.requires_grad)
        assert found == ("cpu", torch.float32, False), part


@pytest.mark.parametrize("name", SHORT + LONG)
def test_what_has_no_answer_is_refused(name: str) -> None:
    entry = EMBEDDED[name]
    assert entry.oracle is not None
    too_long = [0] * (entry.build().config.max_position_embeddings + 1)
    for prompt in ([], [256], [-1], too_long):
        with pytest.raises(ValueError, match="must be"):
            entry.oracle(prompt, 1)


def test_greedy_runs_are_diverse() -> None:
    assert len(set(gpt2_hash_tokens([0], 64))) >= 45


def test_what_a_token_depends_on_changes_it() -> None:
    rng = random.Random(1)
    for length in (2, 20, 300, 4000):
        prompt = [rng.randrange(256) for _ in range(length)]
        read = {length - 1, *sources(length - 1)}
        read |= {source for position in read for source in sources(position)}
        changed = [[*prompt[:p], prompt[p] ^ 37, *prompt[p + 1 :]] for p in sorted(read)]
        is_seen = [generate(each, 1) != generate(prompt, 1) for each in changed]
        assert sum(is_seen) >= 0.8 * len(is_seen)  # two ways to one token may cancel


@pytest.mark.parametrize("window", [WINDOW - 1, WINDOW + 1])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_a_window_one_key_off_changes_nearly_every_token(dtype: torch.dtype, window: int) -> None:
    rng = random.Random(2)
    prompt = torch.tensor([[rng.randrange(256) for _ in range(200)]])
    right, wrong = (moved(build_mistral_hash(), "cpu", dtype) for _ in range(2))
    wrong.config.sliding_window = window
    flipped = right(prompt).logits.argmax(-1) != wrong(prompt).logits.argmax(-1)
    assert flipped[0, WINDOW:].float().mean() > 0.9


def test_the_expert_a_token_is_sent_to_changes_the_next_token() -> None:
    rng = random.Random(3)
    prompt = torch.tensor([[rng.randrange(256) for _ in range(200)]])
    model = build_mixtral_hash()
    right = model(prompt).logits.argmax(-1)
    for layer in model.model.layers:
        layer.mlp.gate.weight.copy_(layer.mlp.gate.weight.roll(1, 0))
    assert (model(prompt).logits.argmax(-1) != right).float().mean() > 0.9


def test_the_window_of_a_random_model_hides_everything_before_it() -> None:
    """With one layer kept, the last query sees exactly `RANDOM_WINDOW` keys."""
    model = build_mistral_window()
    model.config.num_hidden_layers = 1
    prompt = torch.arange(1, 13)[None]
    base = model(prompt, use_cache=False).logits[0, -1]
    for position in range(12):
        changed = prompt.clone()
        changed[0, position] = 200
        moved = not torch.equal(model(changed, use_cache=False).logits[0, -1], base)
        assert moved == (12 - position <= RANDOM_WINDOW), position
