"""Parts of the built-in engines that conformance does not show."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchproof.api import Completion, EngineConfig, Request
from batchproof.errors import UnsupportedModelError
from batchproof.models.catalogue import load_model
from batchproof.models.embedded import EMBEDDED
from batchproof.run.engine_names import PEERS, SERVED, served_by
from batchproof.run.registry import resolve_engine
from batchproof_engines.reference import reference
from batchproof_engines.trial_batch import probe_logits, probe_tokens
from tests.selftest.conftest import LaboratoryFor, needs_psutil
from tests.selftest.tiny_models import tiny

EAGER = {"attn_implementation": "eager"}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.every(2)
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
        ("llama", "static", "its RoPE type 'dynamic' depends on the whole batch"),
        ("llama", "paged", "its RoPE type 'dynamic' depends on the whole batch"),
    ],
)
def test_a_model_that_an_engine_would_answer_wrongly_is_refused(
    model: str, name: str, words: str
) -> None:
    changes = {"rope_parameters": DYNAMIC_ROPE} if model == "llama" else {}
    with pytest.raises(UnsupportedModelError, match=words):
        resolve_engine(name).factory(tiny(model, **changes), EngineConfig())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_trial_batch_allows_what_rounding_does_and_no_more(dtype: torch.dtype) -> None:
    model = load_model("gpt2-random", torch.device("cpu"), dtype).model

    def probe(change: Callable[[Completion], Completion]) -> None:
        def build(config: EngineConfig) -> Any:
            engine = reference(model, config)
            return SimpleNamespace(
                generate=lambda requests: [*map(change, engine.generate(requests))], close=lambda: None
            )

        probe_logits(change.__name__, model, lambda _model, config: build(config))
        probe_tokens(change.__name__, model, None, build)

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
    ("model_type", "name", "changes"),
    [
        ("bloom", "static", {}),
        ("gpt2", "ragged", EAGER),
        ("gpt2", "ragged-paged", EAGER),
        ("mamba", "paged", {}),
        ("gpt2", "ragged", {"n_positions": 5}),
        ("gpt2", "ragged", {"n_positions": 16}),
    ],
)
def test_an_unusual_model_is_served_as_by_the_reference(
    model_type: str, name: str, changes: dict[str, Any]
) -> None:
    """Also one of few positions, to the last of them."""
    model, config = tiny(model_type, **changes), EngineConfig(max_num_seqs=2)
    prompt, num_positions = (1, 2, 3, 4, 5), changes.get("n_positions", 11)
    prompt = prompt[: num_positions // 2]
    cap = num_positions - len(prompt)
    requests = [Request("a", prompt, cap), Request("b", (9,), cap)]
    first, second = (
        resolve_engine(each).factory(model, config).generate(requests) for each in ("reference", name)
    )
    assert first == second
