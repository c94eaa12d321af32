"""The embedded models are what their docstrings say on every machine: the constructed ones agree with
their integer oracles in each dtype, and no shift, lost key or changed token goes unseen.

The weights of `llama-hash` and `bamba-hash` are pinned byte by byte, the others by golden tokens or by
their oracles; what follows from weights alone is shown where it is about an engine.
"""

import random
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from batchproof.decoding.speculation import dialled_draft, disagreeing_tokens, head_of, proposed_instead
from batchproof.models.cached_states import read_as
from batchproof.models.catalogue import ModelUnderTest, load_model, moved
from batchproof.models.embedded import EMBEDDED, KNOWN, VARIANTS_MODEL
from batchproof.models.window_hash_oracle import WINDOW
from batchproof.oracle.adequacy import LEAST_FLIP_RATE, measure_adequacy
from batchproof.oracle.oracle import margins
from batchproof.oracle.rounding import in_8_bits
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S
from batchproof_engines.adapters.word_tokenizer import words_tokenizer
from tests.selftest.conftest import LaboratoryFor

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INT8 = "int8"  # keys and values in 8 bits
HASHES = ("gpt2-hash", "llama-hash", "bamba-hash")
LONG = ("gpt2-long", "mistral-hash", "mixtral-hash", "qwen3-next-hash", "deepseek-hash")
# transformers' experts know no float64.
WAYS = [(name, dtype, "sdpa") for name in HASHES for dtype in DTYPES]
WAYS += [(name, torch.float32, each) for name in HASHES for each in ("eager", INT8)]
WAYS += [(name, dtype, "sdpa") for name in ("eagle-hash", "mtp-hash") for dtype in DTYPES[1:]]
# Each adapter merged into the weights.
VARIANTS = [f"{VARIANTS_MODEL}+{n}" for n in (1, KNOWN[VARIANTS_MODEL].num_variants)]
WAYS += [(name, dtype, "sdpa") for name in VARIANTS for dtype in DTYPES[1:]]
WAYS += [("gemma2-hash", dtype, "eager") for dtype in DTYPES]
WAYS += [("gemma2-hash", dtype, INT8) for dtype in DTYPES[1:]]
WAYS += [("gpt-oss-hash", dtype, "eager") for dtype in DTYPES[1:]]
WAYS += [(name, d, each) for name in LONG for d in DTYPES[1:] for each in ("sdpa", INT8)]
LENS = (1, 8, 9, 64, 129)  # the first is answered with 200 tokens, so that all lengths are met
PROMPT = tuple(b"golden tokens")
WEIGHTS_SHA256 = {
    "llama-hash": "8b6efbab4789dde799def37f0e0ab9e89230f46c5da32dac2b0d7cc70a93536c",
    "bamba-hash": "5ad950894db2a3518007b493b8d9ed8adc5f551af7bfeeddc76446a5253b9f01",
}
GOLDEN = {
    "gpt2-hash": [101, 153, 34, 247, 18, 140, 41, 90, 83, 47, 150, 127],
    "gpt2-random": [148, 40, 148, 228, 148, 6, 228, 148, 148, 148, 6, 148],
    "llama-random": [59, 57, 99, 71, 29, 120, 128, 243, 243, 243, 187, 126],
    "mistral-window": [126, 177, 243, 81, 197, 12, 57, 75, 26, 74, 3, 189],
}


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


@cache
def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    return moved(KNOWN[name].build(), "cpu", dtype)


def right(name: str, prompt: Sequence[int], num_tokens: int = 1) -> list[int]:
    oracle = KNOWN[name].oracle
    assert oracle is not None
    return oracle(prompt, num_tokens)


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "dtype", "attention"), WAYS, ids=str)
def test_every_step_agrees_with_the_integer_oracle(
    name: str, dtype: torch.dtype, attention: str
) -> None:
    """The first token has all bits set: large sums."""
    rng = random.Random(0)
    known, _, number = name.partition("+")
    if number:
        subject = load_model(known, torch.device("cpu"), dtype).variant(int(number))
        built, oracle = subject.model, subject.oracle
    else:
        copied = deepcopy(model(name))  # which takes a tenth of building it
        built, oracle = moved(copied, "cpu", dtype), KNOWN[name].oracle
    assert oracle is not None
    if attention == INT8:
        read_as(built, INT8, in_8_bits)
    else:
        built.set_attn_implementation(attention)
    is_quick = dtype is torch.float32 and attention == "sdpa"
    context = built.config.max_position_embeddings
    longer = (1000, context - 5) if name in LONG and is_quick else ()
    for length in (*LENS, *longer):
        prompt = [255] + [rng.randrange(256) for _ in range(length - 1)]
        answer = oracle(prompt, 200 if length == 1 else 6)
        with torch.inference_mode():
            logits = built(torch.tensor([prompt + answer[:-1]])).logits[0, length - 1 :]
        best = logits.float().topk(2)
        assert best.indices[:, 0].tolist() == answer, f"prompt of {length} tokens"
        assert (best.values[:, 0] - best.values[:, 1]).min() >= (3.5 if name in LONG else 2.2)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tokens_are_pinned(name: str, laboratory_for: LaboratoryFor) -> None:
    """Wide margins, so that no other kernel can flip them."""
    oracle = laboratory_for(DEFAULT_TIME_LIMIT_S).oracle(name)
    answer = oracle.answer(PROMPT, 12)
    assert list(answer.token_ids) == list(oracle.right_tokens(PROMPT, 12)) == GOLDEN[name]
    assert margins(answer.logits.double()).min() > 1000 * oracle.least_error.max_abs


@pytest.mark.parametrize("name", EMBEDDED)
def test_building_a_model_makes_it_whole_and_touches_no_global_state(name: str) -> None:
    before, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    built = EMBEDDED[name].build()
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_default_dtype() is dtype
    assert not built.training
    for holder in (built.config, built.generation_config):
        assert {holder.bos_token_id, holder.eos_token_id, holder.pad_token_id} == {None}
    for part, tensor in (*built.named_parameters(), *built.named_buffers()):
        found = (tensor.device.type, tensor.dtype, tensor.requires_grad)
        assert found == ("cpu", torch.float32, False), part
    if name in WEIGHTS_SHA256:  # the same bytes on every platform
        digest = sha256()
        for part, weight in sorted(built.state_dict().items()):
            digest.update(part.encode() + weight.numpy().tobytes())
        assert digest.hexdigest() == WEIGHTS_SHA256[name]


# -- Keys and positions of `gpt2-hash` and `llama-hash`

of_keys = pytest.mark.parametrize("name", ["gpt2-hash", "llama-hash"])


@torch.no_grad()
def logits_of(
    name: str, token_ids: Tensor, mask: Tensor, positions: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Returns (batch, n, vocab) logits under a boolean `mask` (batch, n, n), True where visible."""
    bias = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)[:, None]
    given = {"attention_mask": bias, "position_ids": positions}
    return model(name, dtype)(token_ids, **given).logits.double()


@of_keys
def test_a_position_one_off_and_a_mask_one_off_change_the_tokens(name: str) -> None:
    tokens, positions = torch.tensor(prompts(6, *[60] * 24)), torch.arange(60).repeat(24, 1)
    causal = torch.ones(60, 60, dtype=torch.bool).tril().repeat(24, 1, 1)
    honest = logits_of(name, tokens, causal, positions).argmax(-1)
    for off in (-1, 1):
        shifted = positions.clone()
        shifted[:, -1] += off  # as if decoding were one off against a cached prompt
        wrong = logits_of(name, tokens, causal, shifted).argmax(-1)
        assert (honest != wrong)[:, -1].sum() >= 23
        mask = torch.ones(60, 60, dtype=torch.bool).tril(off)
        mask[0, 0] = True
        wrong = logits_of(name, tokens[:1], mask[None], positions[:1]).argmax(-1)
        assert (honest[:1] != wrong).sum() >= 57


@of_keys
def test_a_dropped_or_foreign_key_moves_the_logits_far_beyond_rounding(name: str) -> None:
    """One row: a stranger, then our sequence. Only our last query goes wrong, by a single key."""
    num_tokens = 60
    row = torch.tensor(prompts(9, 2 * num_tokens))
    owner = torch.arange(2 * num_tokens) >= num_tokens
    honest = (owner[:, None] == owner[None, :]).tril()
    keys = random.Random(10).sample(range(2 * num_tokens - 1), min(10, 2 * num_tokens - 1))
    masks = honest.repeat(1 + len(keys), 1, 1)
    for index, key in enumerate(keys, start=1):
        masks[index, -1, key] ^= True
    positions = torch.arange(num_tokens).repeat(1 + len(keys), 2)
    found = logits_of(name, row.repeat(1 + len(keys), 1), masks, positions)
    exact = logits_of(name, row, honest[None], positions[:1], torch.float64)
    rounding = (found[0] - exact[0]).abs().max()
    effects = (found[1:, -1] - found[0, -1]).abs().amax(-1)
    assert effects.min() > 100 * rounding


@pytest.mark.parametrize(("name", "window"), [("gpt2-hash", 128), ("llama-hash", 64)])
def test_a_changed_token_of_the_window_changes_what_follows(name: str, window: int) -> None:
    # One next token keeps its value by chance, 1 in 256; a few in a row do not.
    rng = random.Random(4)
    num_changed = 0
    for prompt in prompts(5, *[rng.randint(2, 128) for _ in range(200)]):
        changed, at = list(prompt), -rng.randint(1, min(window - 1, len(prompt) - 1))
        changed[at] ^= rng.randint(1, 255)
        num_changed += (is_changed := right(name, prompt) != right(name, changed))
        assert is_changed or right(name, prompt, 4) != right(name, changed, 4)
    assert num_changed >= 195


WRONG_SETTINGS: list[tuple[str, str, Any]] = [
    *((name, "sliding_window", size) for name in ("mistral-hash", "gemma2-hash") for size in (7, 9)),
    ("gemma2-hash", "layer_types", ["full_attention"] * 4),
    ("gemma2-hash", "layer_types", ["sliding_attention"] * 4),
    ("gemma2-hash", "attn_logit_softcapping", None),
]


@pytest.mark.parametrize(("name", "field", "value"), WRONG_SETTINGS, ids=str)
def test_a_wrong_window_or_cap_changes_nearly_every_token(name: str, field: str, value: Any) -> None:
    tokens, built = torch.tensor(prompts(2, 200)), model(name)
    wrong = type(built)(type(built.config)(**{**built.config.to_dict(), field: value})).eval()
    wrong.load_state_dict(built.state_dict())
    flipped = built(tokens).logits.argmax(-1) != wrong(tokens).logits.argmax(-1)
    assert flipped[0, WINDOW:].float().mean() > 0.9


def test_a_sink_decides_which_of_a_pair_is_read() -> None:
    tokens, built = torch.tensor(prompts(2, 200)), KNOWN["gpt-oss-hash"].build()
    said = built(tokens).logits.argmax(-1)
    for layer in (0, 2):
        sinks = built.model.layers[layer].self_attn.sinks
        kept = sinks.clone()
        sinks.fill_(-1000.0)
        assert (built(tokens).logits.argmax(-1) != said).float().mean() > 0.9
        sinks.copy_(kept)
    built.model.layers[0].mlp.experts.limit = 100.0
    assert (built(tokens).logits.argmax(-1) != said).float().mean() > 0.9


def test_a_dialled_draft_disagrees_where_it_should() -> None:
    """Its logits are the model's, but for the rows that changed places."""
    for name in ("gpt2-hash", "llama-hash"):
        honest = model(name)
        draft = dialled_draft(honest, 0.75)
        assert draft is dialled_draft(honest, 0.75)
        wrong = disagreeing_tokens(256, 0.75)
        assert len(wrong) == 64
        tokens = torch.arange(40)[None] * 7 % 256
        of_model, of_draft = (each(tokens).logits[0] for each in (honest, draft))
        said, drafted = of_model.argmax(-1), of_draft.argmax(-1)
        disagrees = torch.isin(said, torch.tensor(wrong))
        assert disagrees.any()
        assert not disagrees.all()
        assert torch.equal(said != drafted, disagrees)
        assert drafted.tolist() == [proposed_instead(token, 256, 0.75) for token in said.tolist()]
        assert torch.equal(of_model.sort().values, of_draft.sort().values)


def test_a_model_that_is_loaded_again_has_its_head_again() -> None:
    """Heads are registered by the model itself, as is all that a copy of it would lack."""
    for _ in range(2):
        subject = load_model("eagle-hash", torch.device("cpu"), torch.float32)
        assert head_of(dialled_draft(subject.model, 1.0)) is not None


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("name", ["eagle-hash", "mtp-hash"])
@torch.no_grad()
def test_a_draft_head_proposes_as_dialled_also_in_a_chain(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """In a chain the first draft follows the model's hidden state, and others those of the head. The
    token that is chosen decides whether an EAGLE head is wrong, and the one that is fed for MTP."""
    honest, context = model(name, dtype), prompts(3, 60)[0]
    context += right(name, context, 6)
    hidden = honest.model(torch.tensor([context])).last_hidden_state
    chosen = honest.lm_head(hidden)[0].argmax(-1)[1:]
    heads: dict[float, Any] = {each: head_of(dialled_draft(honest, each)) for each in (1.0, 0.75, 0.0)}

    def proposed(head: Any, made: torch.Tensor) -> torch.Tensor:
        return honest.lm_head(head.logits_input(made))[0].argmax(-1)

    for agreement, head in heads.items():
        drafts = proposed(head, head.chained(torch.tensor([context[1:]]), hidden[:, :-1]))
        if name == "eagle-hash":
            assert drafts.tolist() == [
                proposed_instead(each, 256, agreement) for each in chosen.tolist()
            ]
        else:
            wrong = torch.tensor(disagreeing_tokens(256, agreement))
            assert torch.equal(drafts != chosen, torch.isin(torch.tensor(context[1:]), wrong))
    head, fed = heads[1.0], hidden[:, :60]
    for place in range(61, 66):
        made = head.chained(torch.tensor([context[1:place]]), fed)
        assert proposed(head, made)[-1] == context[place]
        fed = torch.cat((fed, made[:, -1:]), 1)
    heads[0.0].save(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert len(saved) >= len(heads[0.0].state_dict())
    assert {each.dtype for each in saved.values()} == {dtype}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [name for name, each in EMBEDDED.items() if each.oracle is None])
def test_a_random_model_shows_damage_in_its_tokens(name: str) -> None:
    subject = load_model(name, torch.device("cpu"), torch.float32)
    adequacy = measure_adequacy(subject)
    assert adequacy.is_adequate, str(adequacy)
    assert adequacy.wrong_first_token > 3 * LEAST_FLIP_RATE, "an embedded model must do far better"


def test_a_model_of_default_initialisation_is_inadequate() -> None:
    """Standard deviation 0.02 and a tied head: it repeats itself whatever it is fed."""
    assert not measure_adequacy(ModelUnderTest("default-init", default_gpt2())).is_adequate


@pytest.mark.parametrize("has_words", [False, True])
def test_a_checkpoint_on_disk_is_loaded_by_path(tmp_path: Path, has_words: bool) -> None:
    default_gpt2().save_pretrained(tmp_path)
    if has_words:
        words_tokenizer(256).save_pretrained(tmp_path)
    subject = load_model(str(tmp_path), torch.device("cpu"), torch.float32)
    assert subject.encode("bytes") == tuple(b"bytes"), "without one of texts, bytes are tokens"
    assert not subject.is_embedded


def default_gpt2() -> GPT2LMHeadModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=4)
        return GPT2LMHeadModel(config).eval()
