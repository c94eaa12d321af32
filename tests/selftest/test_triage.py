"""Triage: each verdict has an engine that gets it, with what proves it."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.api import EngineConfig, Request, SamplingParams
from batchproof.oracle import oracle
from batchproof.oracle.distributions import answer_probabilities
from batchproof.oracle.precision import Precision
from batchproof.records.triage import CLEAN, CONFIG, CORRUPTION, ROUNDING, TRIAGE, EngineTriage
from batchproof.run.registry import resolve_engine
from batchproof.triage import configurations, probes
from batchproof.triage import triage as triage_rule
from batchproof.triage.configurations import Answered, measured_bounds
from tests.selftest.adapters.stand_in_server import Handler, StandIn, answer
from tests.selftest.conftest import oracle_of

FEW_AND_SHORT = (
    (probes, "LENGTHS", (1, 3, 7, 16)),
    (probes, "LONG_CAP", 10),
    (probes, "SHARED", (8,)),
    (probes, "LONGEST_FILLED", 0),
    (probes, "LADDER_LENGTHS", (5,)),
    (probes, "PER_RUNG", 1),
    (probes, "NUM_CANDIDATES", 6),
    (triage_rule, "NUM_DRAWS", 150),
    (probes, "SCENES", (((12,), 40, 3),)),
    (probes, "MOST_KEPT", 4),
    (configurations, "SMALL_VOCABULARY", 0),
    (configurations, "REPETITION_PENALTIES", (1.1,)),
    (configurations, "COARSER", (Precision("bfloat16", kv_cache="int8"),)),
    (oracle, "NUM_CALIBRATION_PROMPTS", 3),
)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in FEW_AND_SHORT:
        monkeypatch.setattr(module, name, value)


def triage(folder: Path, *arguments: str) -> tuple[int, EngineTriage]:
    code = main(["triage", "--output", str(folder), *arguments])
    (found,) = TRIAGE.read(folder / "triage.json").engines
    return code, found


def test_corruption_is_shown_by_the_smallest_scene_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = triage(tmp_path, "fault:eos_ids_of_the_whole_batch", "--model=gpt2-hash")
    assert (code, found.verdict) == (1, CORRUPTION)
    (model,) = found.models
    assert "the same request alone is right" in model.evidence
    assert any(each.startswith("2 requests") for each in model.evidence)
    assert model.failure is not None
    assert main(["replay", str(tmp_path / model.failure)]) == 1
    assert "REPRODUCED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "model", "name"),
    [
        ("set:bos_0-reference", "gpt2-hash", "token 0 stands before each prompt"),
        ("set:repetition_1_1-reference", "llama-twins", "repetition_penalty 1.1"),
        ("set:cut_at_5-reference", "gpt2-hash", "cut at 5 tokens"),
    ],
)
def test_a_setting_is_named(engine: str, model: str, name: str) -> None:
    known = oracle_of(model)
    built = resolve_engine(engine).factory(known.subject.model, EngineConfig())
    requests = [Request(f"r{i}", (5, 9, 17, 60)[: i + 1], 8) for i in range(4)]
    answered = [Answered(each, *built.generate([each])) for each in requests]
    found = configurations.explaining_configuration(known, measured_bounds(known), answered)
    assert found is not None
    assert name in found.name


def test_tokens_that_are_drawn_are_a_setting(tmp_path: Path) -> None:
    code, found = triage(tmp_path, "set:temperature_1-reference", "--model=gpt2-hash")
    assert (code, found.verdict) == (3, CONFIG)
    assert "temperature" in found.models[0].configuration


def test_coarse_arithmetic_is_rounding_and_measured(tmp_path: Path) -> None:
    code, found = triage(tmp_path, "coarse:bfloat16-reference", "--model=llama-twins")
    assert (code, found.verdict) == (0, ROUNDING)
    (model,) = found.models
    assert model.worst_alone is not None
    assert model.worst_alone > 100, "far beyond float32"
    assert model.as_coarse_as == "bfloat16, int8 keys and values"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_a_server_is_found_by_its_url_and_given_words_if_it_takes_text_alone(
    server: StandIn, tmp_path: Path
) -> None:
    """As transformers serve."""

    def text_alone(handler: Handler, body: dict[str, object]) -> None:
        if isinstance(body["prompt"], str):
            answer(handler, body)
        else:
            handler.say(422, {"detail": "prompt must be a string."})

    server.behaviour = text_alone
    code, found = triage(tmp_path, server.base_url.removesuffix("/v1"))
    assert (code, found.verdict) == (0, CLEAN)
    assert [each.model for each in found.models] == ["gpt2-hash"]
    assert found.engine.endswith("&prompts=words")


def test_a_temperature_explains_no_frequencies_but_those_of_draws() -> None:
    known, prompt = oracle_of("gpt2-hash"), (5, 9, 17)
    asked = Request("draw", prompt, 1, sampling=SamplingParams(temperature=1.0))
    first, second = (each for each, _ in Counter(answer_probabilities(known, asked)).most_common(2))
    for counts in ({first: 400}, {first: 200, second: 200}):
        assert configurations.drawn_configuration(known, prompt, counts) is None
