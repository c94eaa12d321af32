"""Triage: each verdict has an engine that gets it, with what proves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest
import torch

from batchproof.__main__ import main
from batchproof.models import llama_hash_oracle
from batchproof.models.catalogue import load_model
from batchproof.oracle import oracle
from batchproof.oracle.oracle import teacher_forced
from batchproof.oracle.precision import Precision
from batchproof.places import ROOT
from batchproof.records.provenance import made_now
from batchproof.records.triage import (
    CLEAN,
    CONFIG,
    CONFUSION,
    CORRUPTION,
    ROUNDING,
    TRIAGE,
    ConfusionRecord,
    EngineTriage,
    Judged,
)
from batchproof.triage import configurations, noise, probes, scenes
from batchproof.triage.blinded import blinded, eligible_faults
from batchproof.triage.drawn import drawn_with
from batchproof.triage.triage_page import confusion_page
from tests.selftest.adapters.stand_in_server import Handler, StandIn, answer

PAIR_MARGIN = 2.4


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks few and short prompts."""
    monkeypatch.setattr(probes, "LENGTHS", (1, 3, 7, 16))
    monkeypatch.setattr(probes, "LONG_CAP", 10)
    monkeypatch.setattr(probes, "SHARED", (8,))
    monkeypatch.setattr(probes, "LONGEST_FILLED", 0)
    monkeypatch.setattr(probes, "LADDER_LENGTHS", (5,))
    monkeypatch.setattr(probes, "PER_RUNG", 1)
    monkeypatch.setattr(configurations, "SMALL_VOCABULARY", 0)
    monkeypatch.setattr(configurations, "PENALTIES", (1.1,))
    monkeypatch.setattr(configurations, "SUBTRACTED", (0.6,))
    monkeypatch.setattr(oracle, "NUM_CALIBRATION_PROMPTS", 3)
    monkeypatch.setattr(scenes, "NUM_DRAWN", 2)
    monkeypatch.setattr(scenes, "CROWD", 20)
    monkeypatch.setattr(noise, "COARSER", (Precision("bfloat16", is_cache_int8=True),))


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


def test_a_setting_is_named(tmp_path: Path) -> None:
    code, found = triage(tmp_path, "set:bos_0-reference", "--model=gpt2-hash")
    assert (code, found.verdict) == (3, CONFIG)
    assert "token 0 stands before each prompt" in found.models[0].why


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


def test_a_server_that_lists_no_model_is_told_how_to_name_it(
    server: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.listed = ()
    assert main(["triage", "--output", str(tmp_path), server.base_url]) == 2
    told = f"'openai?base_url={server.base_url}&model=NAME&listed=false'"
    assert told in capsys.readouterr().err


def test_a_server_whose_answers_follow_its_load_is_corrupt(server: StandIn, tmp_path: Path) -> None:
    at_work: list[
        object
    ] = []  # left before the answer is sent, so that the next request alone is alone

    def crowded(handler: Handler, body: dict[str, object]) -> None:
        at_work.append(handler)
        sleep(0.005)
        if len(at_work) > 1:
            body["prompt"] = [7, *body["prompt"]]  # type: ignore[misc]
        at_work.remove(handler)
        answer(handler, body)

    server.behaviour = crowded
    code, found = triage(tmp_path, server.base_url)
    assert (code, found.verdict) == (1, CORRUPTION)


def test_a_model_that_is_not_known_by_name_must_be_named(
    server: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.listed = ("mine",)
    assert main(["triage", "--output", str(tmp_path), server.base_url]) == 2
    assert "with --model" in capsys.readouterr().err


def test_draws_are_told_from_answers_that_go_wrong() -> None:
    for seed in range(2):  # 30 of 30 passed when it was written
        generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(40, 8, 24, generator=generator, dtype=torch.float64)
        shares = (logits / 0.8).softmax(dim=-1).flatten(0, 1)
        drawn = torch.multinomial(shares, 1, generator=generator).view(40, 8)
        found = drawn_with([(tuple(t.tolist()), row) for t, row in zip(drawn, logits, strict=True)])
        assert found is not None
        assert 0.6 <= found.temperature <= 1.0
        wrong = logits.argmax(dim=-1)
        wrong[:, 3:] = torch.randint(24, (40, 5), generator=generator)
        pairs = [(tuple(t.tolist()), row) for t, row in zip(wrong, logits, strict=True)]
        assert drawn_with(pairs) is None


def test_twins_are_named_by_the_hash_and_told_apart_by_any_margin() -> None:
    subject = load_model("llama-twins", torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(256, (24, 40), generator=generator).tolist()
    scores = teacher_forced(subject, [(tuple(each[:8]), tuple(each[8:])) for each in prompts])
    for prompt, logits in zip(prompts, scores, strict=True):
        (named,) = llama_hash_oracle.generate(prompt[:8], 1)
        best, twin, third = logits.topk(3).indices[0].tolist()
        assert best // 2 == twin // 2 == named // 2
        assert logits[0, best] - logits[0, third] > PAIR_MARGIN
    margins = torch.cat([-each.topk(2).values.diff() for each in scores])
    assert margins.min() < 1e-3 < margins.max() < 1


def test_the_blinded_are_half_honest_and_what_was_seen_is_not_held_out() -> None:
    held, seen = (blinded(0, is_held_out) for is_held_out in (True, False))
    assert len(held) == 100
    assert sum(each.truth == (CORRUPTION,) for each in held) == 50
    assert {f"fault:{each}" for each in eligible_faults()} >= {
        each.target for each in held if each.truth == (CORRUPTION,)
    }
    assert not {e.target for e in held if e.truth[0] != CLEAN} & {e.target for e in seen}


def test_the_kept_table_is_of_a_hundred_engines_and_blames_no_honest_one() -> None:
    kept = CONFUSION.read(ROOT / "results" / "triage.json")
    page = (ROOT / "results" / "triage.md").read_text(encoding="utf-8")
    assert page == confusion_page(kept)
    honest = [each for each in kept.engines if each.truth != (CORRUPTION,)]
    assert (len(kept.engines), len(honest)) == (100, 50)
    assert not [each.target for each in honest if each.said.verdict == CORRUPTION]
    num_right = sum(each.said.verdict in each.truth for each in kept.engines)
    assert f"right about **{num_right} of 100**" in (ROOT / "docs" / "triage.md").read_text()


def test_the_confusion_table_counts_what_is_right() -> None:
    said = EngineTriage("engine-0", None, refusals=("it answers nothing",))
    judged = Judged("fault:off_by_one", (CORRUPTION,), "a lie", said)
    page = confusion_page(ConfusionRecord(made_now(), 1, True, (judged,)))
    assert "0 of 1 verdicts are right." in page
    assert "| `fault:off_by_one`: a lie | CORRUPTION | no answer | it answers nothing |" in page
