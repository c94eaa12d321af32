"""Parts of the built-in engines that conformance does not show."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, StaticCache

from batchproof.api import Completion, EngineConfig, Request
from batchproof.errors import UnsupportedModelError
from batchproof.models.catalogue import load_model
from batchproof.models.embedded import EMBEDDED
from batchproof.run.engine_names import PEERS, SERVED, served_by
from batchproof.run.registry import resolve_engine
from batchproof_engines.reference import reference
from batchproof_engines.trial_batch import probe_logits, probe_tokens
from batchproof_lab.model_sweep.toys import Toy
from tests.selftest.conftest import LaboratoryFor, needs_psutil


@pytest.mark.parametrize(
    "engine", [pytest.param(each, marks=needs_psutil if each in PEERS else ()) for each in SERVED]
)
def test_a_built_in_engine_serves_the_models_of_its_list_and_no_others(
    engine: str, laboratory_for: LaboratoryFor
) -> None:
    lab, served = laboratory_for(60.0), set()
    for name in EMBEDDED:
        with suppress(UnsupportedModelError):
            lab.capabilities(resolve_engine(engine), lab.subject(name))
            served.add(name)
    assert served == served_by(engine, "float32")


@pytest.mark.parametrize("name", [name for name, each in EMBEDDED.items() if each.oracle is None])
def test_the_reference_agrees_with_the_librarys_own_generate(name: str) -> None:
    subject = load_model(name, torch.device("cpu"), torch.float32)
    rng = random.Random(3)
    engine = reference(subject.model, EngineConfig())
    for length in (1, 2, 7, 30):
        prompt = tuple(rng.randrange(256) for _ in range(length))
        (completion,) = engine.generate([Request("r", prompt, 12)])
        output = subject.model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert tuple(output[0, length:].tolist()) == completion.token_ids


EAGER = {"attn_implementation": "eager"}


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        ("mamba", "static", "'static' cannot serve MambaForCausalLM"),
        ("mamba", "transformers-cb", "'transformers-cb' cannot serve MambaForCausalLM"),
        # ALiBi, whose bias is built from a 2-D padding mask: a packed row has none.
        ("bloom", "ragged", "'ragged' cannot serve BloomForCausalLM"),
        # transformers serves it without an error, and wrongly.
        pytest.param(
            *("bloom", "transformers-cb", "BloomForCausalLM: in a batch it chooses tokens"),
            marks=needs_psutil,
        ),
        ("mamba", "generate-static", "'generate-static' cannot serve MambaForCausalLM"),
    ],
)
def test_a_model_that_an_engine_would_answer_wrongly_is_refused(
    model: str, name: str, words: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        resolve_engine(name).factory(Toy(model).build(seed=0), EngineConfig())


class _Changed:
    """The reference, with changed answers."""

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig, change: Callable[[Completion], Completion]
    ) -> None:
        self._engine, self._change = reference(model, config), change

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._change(each) for each in self._engine.generate(requests)]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_trial_batch_allows_what_rounding_does_and_no_more(dtype: torch.dtype) -> None:
    model = load_model("gpt2-random", torch.device("cpu"), dtype).model

    def probe(change: Callable[[Completion], Completion]) -> None:
        name = change.__name__
        probe_logits(name, model, lambda model, config: _Changed(model, config, change))
        probe_tokens(name, model, None, lambda config: _Changed(model, config, change))

    def right(given: Completion) -> Completion:
        return given

    def shifted(given: Completion) -> Completion:
        return given if given.logits is None else replace(given, logits=given.logits + 1.0)

    def other_tokens(given: Completion) -> Completion:
        others = tuple(token ^ 1 for token in given.token_ids)
        return given if given.logits is not None else replace(given, token_ids=others)

    probe(right)
    with pytest.raises(UnsupportedModelError, match="in a batch its logits differ by"):
        probe(shifted)
    with pytest.raises(UnsupportedModelError, match="in a batch it chooses tokens that are"):
        probe(other_tokens)


@pytest.mark.parametrize(
    ("model", "changes", "name"),
    [
        ("bloom", {}, "static"),
        ("gpt2", EAGER, "ragged"),
        ("gpt2", EAGER, "ragged-paged"),
        ("gpt2", {"n_positions": 5}, "ragged"),
        ("gpt2", {"n_positions": 16}, "ragged"),
    ],
)
def test_an_unusual_model_is_served_as_by_the_reference(
    model: str, changes: dict[str, Any], name: str
) -> None:
    toy = Toy(model, changes=changes).build(seed=0)
    requests = [Request("a", (1, 2, 3), 2), Request("b", (9,), 4)]
    first, second = (
        resolve_engine(each).factory(toy, EngineConfig(max_num_seqs=2)).generate(requests)
        for each in ("reference", name)
    )
    assert first == second


def test_generate_takes_a_larger_cache_for_a_longer_prompt() -> None:
    model = load_model("gpt2-long", torch.device("cpu"), torch.float32).model
    engines = [
        resolve_engine(each).factory(model, EngineConfig()) for each in ("generate-static", "reference")
    ]
    for length in (3, 300):
        request = Request("r", tuple(i % 256 for i in range(length)), 3)
        first, second = (each.generate([request]) for each in engines)
        assert first == second


def test_generate_compiles_one_step_for_one_static_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves all batches, padded or not, full or not, short or long."""
    model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.5)  # it is not asked
    lens = [(3, 7), (3, 2), (9, 4), (1, 1), (5, 9), (5, 9), (2, 6)]
    requests = [
        Request(f"r{i}", tuple(range(i, i + n)), cap, eos_token_ids=frozenset({i}))
        for i, (n, cap) in enumerate(lens)
    ]
    compiled, caches = [], []

    def compiler(graph: torch.fx.GraphModule, _inputs: object, **_options: object) -> object:
        compiled.append(graph)
        return graph

    build = resolve_engine("generate-static").factory
    engine = build(model, EngineConfig(max_num_seqs=2, max_model_len=32), compile=compiler)
    monkeypatch.setattr(StaticCache, "__init__", lambda *given, **_: caches.append(given))
    expected = resolve_engine("reference").factory(model, EngineConfig()).generate(requests)
    assert engine.generate(requests) == expected
    assert (len(compiled), caches) == (1, [])
