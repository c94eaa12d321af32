"""The paged engine's own promises: what its options change, what they preserve, what it refuses, and
events that must leave it in a working state."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from batchproof.api import EngineConfig, Request
from batchproof.checks.environment import model_of
from batchproof.errors import ConfigError
from batchproof.generators.strategies import text_tokens
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine
from batchproof_paged import native, paged
from batchproof_paged.block_manager import RESTORED, TRANSFERRED

CPU = torch.device("cpu")
VARIANTS: dict[str, dict[str, Any]] = {
    "lanes": {},
    "plain": {"native": False},
    "blocks": {"backend": "blocks"},
    "captured": {"backend": "blocks", "graphs": True},
    "overlapped": {"overlap": True},
    "captured and overlapped": {"backend": "blocks", "graphs": True, "overlap": True},
    "offloading": {"offload": 8},
    "transferring": {"transfer": True},
    "prepared": {"backend": "blocks", "graphs": True, "overlap": True, "prepare": True},
}
needs_native = pytest.mark.skipif(not native.works(), reason=str(native.why_not()))
# Chunks, preemption, a former tenant's lane, and sequences of many lengths.
CROWDED = EngineConfig(
    max_num_seqs=3, max_num_batched_tokens=16, block_size=4, num_blocks=12, return_logits=True
)


def requests(vocab_size: int, num: int = 7) -> list[Request]:
    lengths = (9, 21, 1, 14, 4, 30, 2)[:num]
    return [
        Request(f"r{i}", text_tokens(i, vocab_size)[:length], 3 + 4 * (i % 3))
        for i, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module", params=["gpt2-random", "llama-random", "mistral-window"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return load_model(request.param, CPU, torch.float32).model


@pytest.fixture
def phi3() -> PreTrainedModel:
    """Of a family that the native decoder does not know."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    torch.manual_seed(0)
    config = Phi3Config(**sizes, num_attention_heads=4, initializer_range=0.2, pad_token_id=None)
    return Phi3ForCausalLM(config).eval().requires_grad_(False)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "lanes"])
def test_every_variant_answers_alike(model: PreTrainedModel, name: str) -> None:
    asked = requests(model.config.vocab_size)
    plain = paged(model, CROWDED).generate(asked)
    engine = paged(model, CROWDED, **VARIANTS[name])
    answers = engine.generate(asked)
    assert [each.token_ids for each in answers] == [each.token_ids for each in plain]
    assert engine.generate(asked) == answers, "the second time as the first"
    for ours, theirs in zip(answers, plain, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)


def test_the_models_own_attention_is_back_after_a_step_and_after_an_error(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = model.config._attn_implementation
    engine = paged(model, EngineConfig(), native=False)
    engine.add(Request("a", (1, 2, 3), 1))
    engine.step()
    assert model.config._attn_implementation == own

    def broken(*_: object) -> None:
        raise RuntimeError("no attention today")

    monkeypatch.setattr(engine._backend, "attend", broken)
    with pytest.raises(RuntimeError, match="no attention today"):
        engine.generate([Request("a", (1, 2, 3), 3)])
    assert model.config._attn_implementation == own


@needs_native
def test_layers_of_other_families_multiply_by_copies_and_the_callers_model_is_untouched(
    phi3: PreTrainedModel,
) -> None:
    before, modules = copy.deepcopy(model_of(phi3)), [*phi3.modules()]
    attributes = [set(vars(each)) for each in modules]
    asked = requests(64)
    plain = paged(phi3, EngineConfig(), native=False).generate(asked)
    engine = paged(phi3, EngineConfig())
    assert engine.generate(asked) == plain
    copies = engine._runner._pass._products._copies.used.values()
    assert len(copies) == sum(type(each) is nn.Linear for each in modules)
    for each in copies:
        each.weight = torch.zeros_like(each.weight)
    assert engine.generate(asked) != plain
    assert model_of(phi3) == before
    assert [*phi3.modules()] == modules
    assert [set(vars(each)) for each in modules] == attributes


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"backend": "pages"}, "backend is 'pages', but must be one of auto, lanes, blocks, triton"),
        ({"compile": True, "native": True}, "native and compile exclude each other"),
        ({"linears": "fast"}, "'linears' is no option; there are backend, native, graphs, overlap"),
        ({"feed": "stacked", "graphs": True}, "graphs needs feed=packed"),
        ({"native": 1}, "native is 1, but must be one of false, true"),
        ({"offload": -1}, "offload is -1, but must be a whole number of blocks"),
        (
            {"offload": 8, "backend": "lanes"},
            "offload and transfer need feed=packed, and backend=blocks",
        ),
        ({"transfer": True, "overlap": True}, "transfer=true needs overlap=false"),
    ],
)
def test_options_that_are_wrong_or_contradict_each_other_are_named(
    options: dict[str, Any], rule: str
) -> None:
    model = load_model("gpt2-random", CPU, torch.float32).model
    with pytest.raises(ConfigError, match=rule):
        paged(model, EngineConfig(), **options)


@pytest.mark.parametrize(
    ("options", "drafts"),
    [
        ({"offload": 8}, {}),
        ({"offload": 8}, {"num_speculative_tokens": 3, "draft_agreement": 1.0}),
        ({"transfer": True}, {}),
        ({"offload": 8, "transfer": True}, {}),
    ],
    ids=str,
)
def test_blocks_keep_their_content_wherever_they_go(
    options: dict[str, Any], drafts: dict[str, Any]
) -> None:
    """Prompts come back once others have taken their blocks; with drafts that are always right, which
    a block without its keys would spoil."""
    model = load_model("llama-hash", CPU, torch.float32).model
    config = EngineConfig(max_num_seqs=1, block_size=4, num_blocks=5, prefix_caching=True)
    engine = paged(model, replace(config, **drafts), **options)
    plain = paged(model, EngineConfig())
    for text in (1, 2, 1, 2, 3, 1):
        asked = [Request("again", text_tokens(text, model.config.vocab_size)[:14], 4)]
        assert engine.generate(asked) == plain.generate(asked)
    rows = [row for record in engine.trace for row in record.rows]
    assert all(row.num_accepted == row.num_drafted for row in rows)
    wanted = {"transfer": TRANSFERRED, "offload": RESTORED}
    assert all(engine.counters[wanted[each]] for each in options)


def test_an_aborted_request_leaves_neither_engine_a_block(llama: PreTrainedModel) -> None:
    """In each state: ahead, between the two engines, and going on."""
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=8, block_size=4, num_blocks=6)
    engine = paged(llama, config, transfer=True)
    long, other = text_tokens(0, llama.config.vocab_size)[:12], (5, 6, 7)
    for num_steps in range(8):
        for name, prompt in (("long", long), ("other", other), ("third", long)):
            engine.add(Request(name, prompt, 9))
        for _ in range(num_steps):
            engine.step()
        for name in ("long", "other", "third"):
            engine.abort(name)
        engine.step()
        assert not engine.has_unfinished
        schedulers = engine._scheduler, engine._prompts._scheduler
        assert [each.blocks.num_free_blocks for each in schedulers] == [6, 6]
        assert sorted(schedulers[0]._free_lanes) == [0, 1, 2]


# ---- events that must leave it in a working state ------------------------------------------------


@pytest.fixture
def llama() -> PreTrainedModel:
    return load_model("llama-random", CPU, torch.float32).model


@pytest.mark.parametrize(
    "options", [{}, {"backend": "blocks"}, {"backend": "blocks", "graphs": True}], ids=str
)
def test_a_row_of_nan_leaves_nothing_behind(llama: PreTrainedModel, options: dict[str, Any]) -> None:
    """Cells after a sequence's end are read with weight zero, which does not cancel a NaN."""
    model = copy.deepcopy(llama)
    model.get_input_embeddings().weight.data[7] = float("inf")
    good = [Request("g", (20, 21), 4), Request("h", (30, 31, 32, 33, 34, 35), 4)]
    bad = [Request("bad", (7,) * 12, 1), Request("worse", (7,) * 9, 3)]
    for is_cached in (False, True):
        config = EngineConfig(max_num_seqs=2, num_blocks=8, block_size=4, prefix_caching=is_cached)
        engine = paged(model, config, **options)
        before = engine.generate(good)
        engine.generate(bad)
        assert engine.generate(good) == before
        beside = engine.generate([good[0], bad[1], good[1], bad[0]])
        assert [beside[0], beside[2]] == before


def in_place(weight: torch.Tensor) -> None:
    weight.copy_(weight.flip(0))


def through_data(weight: torch.Tensor) -> None:
    weight.data.copy_(weight.data.flip(0))


def in_another_place(weight: torch.Tensor) -> None:
    weight.data = weight.data.flip(0)


@needs_native
@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("change", [in_place, through_data, in_another_place])
def test_packed_weights_follow_the_model(
    family: str, is_tied: bool, change: Callable[[torch.Tensor], None], request: pytest.FixtureRequest
) -> None:
    model: Any = copy.deepcopy(request.getfixturevalue(family))
    if is_tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    asked = [Request("a", (1, 2, 3), 6)]
    engine = paged(model, EngineConfig(max_num_seqs=1), native=True)
    before = engine.generate(asked)
    for parameter in model.parameters():
        change(parameter)
    after = engine.generate(asked)
    assert after == resolve_engine("reference").factory(model, EngineConfig()).generate(asked) != before


def test_weights_that_were_equal_may_change_apart(llama: PreTrainedModel) -> None:
    """Nothing that was derived from one of them may stand for the other."""
    model = copy.deepcopy(llama)
    norms = [each for each in model.parameters() if each.dim() == 1]
    for norm in norms:
        norm.fill_(1.0)
    asked = [Request("a", (1, 2, 3), 6)]
    paged(model, EngineConfig()).generate(asked)
    for index, norm in enumerate(norms):
        norm.copy_(torch.linspace(0.2 + index, 2.0, len(norm)))
    changed = paged(model, EngineConfig()).generate(asked)
    assert changed == resolve_engine("reference").factory(model, EngineConfig()).generate(asked)


def test_a_call_that_raises_leaves_the_engine_free(llama: PreTrainedModel) -> None:
    engine = paged(llama, EngineConfig())
    good = Request("good", (1, 2), 2)
    with pytest.raises(TypeError):
        engine.generate([good, Request("bad", None, 2)])  # type: ignore[arg-type]
    (answer,) = engine.generate([good])
    assert len(answer.token_ids) == 2


@pytest.mark.parametrize("options", [{}, {"feed": "separate"}], ids=str)
def test_autocast_is_refused_and_costs_no_request(
    llama: PreTrainedModel, options: dict[str, Any]
) -> None:
    asked = Request("a", (1, 2, 3), 6)
    engine = paged(llama, EngineConfig(), **options)
    (expected,) = engine.generate([asked])
    engine.add(asked)
    tokens = [event.token_id for event in engine.step()]
    engine.add(Request("bad", (), 1))
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ConfigError, match=r"torch\.autocast is on, .*: build and run it outside"):
            engine.step()
        with pytest.raises(ConfigError, match=r"torch\.autocast is on"):
            paged(llama, EngineConfig(), **options)
    while engine.has_unfinished:
        tokens += [event.token_id for event in engine.step() if event.request_id == "a"]
    assert tuple(tokens) == expected.token_ids
