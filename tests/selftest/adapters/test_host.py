"""An engine at the far end of a pipe answers as it does in this process."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from batchproof.api import Completion, EngineConfig, FinishReason, Request, SamplingParams, TokenEvent
from batchproof.errors import UnsupportedModelError
from batchproof.records.decode import decode
from batchproof.run.registry import engines_module, resolve_engine
from batchproof_engines.adapters.checkpoint import saved
from batchproof_engines.adapters.piped import protocol
from batchproof_engines.adapters.piped.engine import completions_of, events_of, request_to_json

HOST = engines_module("adapters.piped.host")
CONFIG = EngineConfig(max_num_seqs=2, prefix_caching=True)
REQUESTS = [Request("a", (1, 2, 3), 4), Request("b", (4, 5), 2), Request("bad", (), 2)]


def completions(answer: list[Any]) -> list[Completion]:
    return completions_of(decode(protocol.Generated, {"completions": answer}))


def events(answer: list[Any]) -> list[TokenEvent]:
    return events_of(decode(protocol.Stepped, {"events": answer}))


def build(model: Any, factory: Any = None) -> Any:
    factory = factory or resolve_engine("ragged").factory
    hosted = HOST.Hosted("mine", factory, ["logits", "stepping", "tracing"], [], {}, 1, "cpu")
    assert hosted.capabilities == ["stepping", "tracing"]
    return hosted.build(str(saved(model)), "float32", asdict(CONFIG), 1)


def test_parameters_go_there_and_logprobs_come_back(model: Any) -> None:
    asked = SamplingParams(
        frequency_penalty=2.0, logit_bias=((7, 40.0), (8, 39.0)), logprobs=2, prompt_logprobs=1
    )
    requests = [replace(each, sampling=asked) for each in REQUESTS[:2]]
    here = resolve_engine("ragged").factory(model, CONFIG).generate(requests)
    engine = build(model)
    answer = engine.generate(list(map(request_to_json, requests)))
    there = completions(answer)
    assert there == here
    plain = resolve_engine("ragged").factory(model, CONFIG).generate(REQUESTS)
    answer = build(model).generate(list(map(request_to_json, REQUESTS)))
    assert completions(answer) == plain
    assert [len(each.prompt_logprobs or ()) for each in there] == [3, 2]
    for own, told in zip(here, there, strict=True):
        found = [(each.rank, each.top[0][0]) for each in told.logprobs or ()]
        assert found == [(each.rank, each.top[0][0]) for each in own.logprobs or ()] != []
    engine.add(request_to_json(requests[0]))
    (event,) = events(engine.step())
    assert event.logprobs is not None
    assert len(event.logprobs.top) == 2


def test_the_draft_goes_there_as_a_checkpoint(model: Any) -> None:
    """The far end makes its own from the same dial; other programs load this one."""
    asked = replace(CONFIG, num_speculative_tokens=3, draft_agreement=0.5)
    hosted = HOST.Hosted("p", resolve_engine("paged").factory, ["speculation"], [], {}, 1, "cpu")
    draft = asked.draft_model(model)
    assert draft is not None
    loaded = AutoModelForCausalLM.from_pretrained(saved(draft))
    for name, value in draft.state_dict().items():
        assert loaded.state_dict()[name].equal(value), name
    engine = hosted.build(str(saved(model)), "float32", asdict(asked), 1, draft=str(saved(draft)))
    here = resolve_engine("reference").factory(model, CONFIG).generate(REQUESTS)
    answer = engine.generate(list(map(request_to_json, REQUESTS)))
    assert [each.token_ids for each in completions(answer)] == [each.token_ids for each in here]


def test_requests_are_added_stepped_and_cancelled(model: Any) -> None:
    engine = build(model)
    for request in REQUESTS[:2]:
        engine.add(request_to_json(request))
    with pytest.raises(HOST.serving.Live):
        engine.add(request_to_json(REQUESTS[0]))
    stepped = events(engine.step())
    assert [event.request_id for event in stepped] == ["a", "b"]
    assert all(isinstance(event.token_id, int) for event in stepped)
    for name in ("a", "b"):
        engine.abort(name)
    assert events(engine.step()) == [
        TokenEvent(each, None, FinishReason.ABORTED) for each in ("a", "b")
    ]
    assert not engine.has_unfinished()
    engine.close()


def test_the_engine_has_the_whole_config_and_may_refuse_the_model(model: Any) -> None:
    given: list[EngineConfig] = []

    class Counting:
        def __init__(self, _model: Any, config: EngineConfig) -> None:
            given.append(config)

        def generate(self, requests: list[Request]) -> list[Completion]:
            return [Completion.refused(each.request_id, "no") for each in requests]

    def refusing(_model: Any, _config: EngineConfig) -> Any:
        raise UnsupportedModelError("too small")

    build(model, Counting)
    assert given == [CONFIG]
    with pytest.raises(HOST.serving.Unsupported, match="too small"):
        build(model, refusing)
