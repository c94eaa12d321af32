"""Triage: each verdict has an engine that gets it, the chances that it states hold, and a pack is read
back as it was made."""

import json
import math
import os
import random
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchproof.__main__ import main
from batchproof.api import Capability
from batchproof.models.embedded import TWINS_MODEL
from batchproof.oracle.oracle import Oracle
from batchproof.records.probe_packs import PROBE_PACK, SAME, PrecisionNoise, Probe, ProbePack, Step
from batchproof.records.provenance import made_now
from batchproof.records.triage import (
    CLEAN,
    CONFIG,
    CORRUPT,
    MIXED,
    ROUNDING,
    TRIAGE,
    UNDECIDED,
    WATCH_STATE,
    EndpointTriage,
    Verdict,
)
from batchproof.triage import making, noise, pack_command, triage_command
from batchproof.triage.asking import Asked, Said, Scene, read
from batchproof.triage.deciding import Rule, Triage
from batchproof.triage.hypotheses import (
    ALONE,
    HONEST,
    HONEST_SCALE,
    Evidence,
    Seen,
    hypotheses,
    noisy,
    scale_of,
)
from batchproof.triage.scenes import AGAIN
from batchproof.triage.watching import YEAR_S, Watch, opened
from batchproof_lab.verifier_endpoints import COMPANY, FINER, Endpoint, Kind, Table
from tests.selftest.adapters.stand_in_server import Handler, StandIn, answer

QUICK = "gpt2-hash"  # its margins are wide, and tell no rounding
MAKING = ("probe-pack", QUICK, "--dtype=float32")
IN_COMPANY = ("the scene 'together'", "not asked for alone")  # where leaks of a batch are seen


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_command, "NUM_AT_HAND", 16)
    monkeypatch.setattr(making, "LENGTHS", (5, 12))
    monkeypatch.setattr(noise, "NUM_PROMPTS", 2)
    monkeypatch.setattr(triage_command, "pack_at_hand", pack_at_hand)


MADE: dict[str, ProbePack] = {}  # by model


def pack_at_hand(oracle: Oracle, seed: int) -> ProbePack:
    name = oracle.subject.name
    if name not in MADE:
        MADE[name] = pack_command.pack_at_hand(oracle, seed)
    return MADE[name]


def triage(folder: Path, *arguments: str) -> tuple[int, EndpointTriage]:
    code = main(["triage", "--output", str(folder), *arguments])
    (found,) = TRIAGE.read(folder / "triage.json").found
    return code, found


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("engine", "model", "verdict", "name", "code"),
    [
        ("static", QUICK, CLEAN, "", 0),
        ("set:bos_0-reference", QUICK, CONFIG, "token 0 stands before each prompt", 3),
        ("coarse:bfloat16-reference", TWINS_MODEL, ROUNDING, "bfloat16", 4),
        ("set:repetition_1_1-reference", TWINS_MODEL, CONFIG, "repetition_penalty 1.", 3),
        ("set:cut_at_5-reference", QUICK, CONFIG, "cut at 5 tokens", 3),
        ("set:temperature_1-reference", QUICK, CONFIG, "about temperature", 3),
    ],
)
def test_each_verdict_has_an_engine(
    tmp_path: Path, engine: str, model: str, verdict: Verdict, name: str, code: int
) -> None:
    found = triage(tmp_path, engine, f"--model={model}", "--budget=60")
    assert (found[0], found[1].verdict) == (code, verdict)
    assert name in found[1].why


def test_corruption_is_told_by_its_scene_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = triage(
        tmp_path, "fault:eos_ids_of_the_whole_batch", f"--model={QUICK}", "--budget=80"
    )
    assert (code, found.verdict) == (1, CORRUPT)
    assert found.why.endswith(IN_COMPANY)
    (failure,) = tmp_path.glob("p*.json")
    assert main(["replay", str(failure)]) == 1
    assert "REPRODUCED" in capsys.readouterr().out


STEPS = 4


def pack_of(num: int, seed: int = 0) -> ProbePack:
    """Near-ties in the first half, wide margins in the second. All tokens that noise may reach are
    listed: those behind the ranked ones as well."""
    rng = random.Random(seed)

    def step(is_wide: bool) -> Step:
        low, high = (60, 90) if is_wide else (0.5, 40)
        behind = sorted(rng.uniform(low, high) for _ in range(23))
        return Step(tuple(rng.sample(range(1000), 24)), (0.0, *behind))

    probes = [
        Probe((n,), tuple(step(n >= num // 2) for _ in range(STEPS)), under=(SAME,)) for n in range(num)
    ]
    precisions = (
        PrecisionNoise("8 bits", 6.0, scale_of(6)),
        PrecisionNoise("4 bits", 20.0, scale_of(20)),
    )
    return ProbePack(
        made_now(), "made", "bfloat16", seed, 1000, 0.03, precisions, ("as it is",), tuple(probes)
    )


class Simulated:
    """A door to an endpoint whose answers are drawn from the noise of each probe, once for each."""

    capabilities: frozenset[Capability] = frozenset()
    can_cut = False

    def __init__(
        self, pack: ProbePack, shift: float, seed: int, share: float = 1.0, leaks: float = 0.0
    ) -> None:
        self.pack, self.rng, self.share, self.leaks = pack, random.Random(seed), share, leaks
        self.answers = [[self._drawn(probe, each) for probe in pack.probes] for each in (1.0, shift)]

    def _drawn(self, probe: Probe, shift: float) -> tuple[int, ...]:
        tokens = []
        for step in probe.steps:
            noise = [scale_of(shift) * math.log(self.rng.expovariate(1.0)) for _ in step.tokens]
            gaps = [b + e for b, e in zip(step.behind, noise, strict=True)]
            tokens.append(step.tokens[gaps.index(min(gaps))])
        return tuple(tokens)

    def ask(self, scene: Scene) -> list[Said]:
        said = []
        for asked in (each for call in scene.calls for each in call):
            tokens = self.answers[self.rng.random() < self.share][asked.probe]
            if scene.name != ALONE and self.rng.random() < self.leaks:
                tokens = (999_999, *tokens[1:])
            said.append(Said(tokens))
        return said


def verdict_on(door: Simulated, budget: int = 300) -> EndpointTriage:
    return Triage(door, door.pack, Rule(budget=budget), is_ours=False).decide("simulated")


def test_no_honest_endpoint_is_blamed() -> None:
    pack = pack_of(64)
    blamed = [
        seed for seed in range(12) if verdict_on(Simulated(pack, 1.0, seed), 100).verdict != CLEAN
    ]
    assert not blamed


@pytest.mark.parametrize(
    ("shift", "share", "leaks", "verdict", "name", "most"),
    [
        (20.0, 1.0, 0.0, ROUNDING, "4 bits", 60),
        (6.0, 1.0, 0.0, ROUNDING, "8 bits", 100),
        (20.0, 0.125, 0.0, MIXED, "4 bits", 250),
        (1.0, 1.0, 0.05, CORRUPT, "of the answers", 300),
    ],
)
def test_a_cause_is_named_within_few_requests(
    shift: float, share: float, leaks: float, verdict: Verdict, name: str, most: int
) -> None:
    found = verdict_on(Simulated(pack_of(64), shift, 3, share, leaks))
    assert (found.verdict, found.num_requests <= most) == (verdict, True)
    assert name in found.why
    assert found.chance <= 0.001


def test_an_endpoint_that_may_read_a_hidden_prompt_is_not_called_corrupt() -> None:
    door = Simulated(pack_of(64), 1.0, 3)
    door.answers = [[(999_999,) * STEPS for _ in door.pack.probes]] * 2
    found = Triage(door, door.pack, Rule(), is_ours=False).decide("simulated")
    assert found.verdict == UNDECIDED
    assert "hidden prompt" in found.why


def test_the_mean_ratio_of_honest_answers_is_at_most_one() -> None:
    """What bounds false alarms: answers with the shares of honest noise make it one, on average."""
    pack, rng = pack_of(8), random.Random(1)
    total, num = 0.0, 400
    for _ in range(num):
        evidence = Evidence(pack, [*hypotheses(pack, ())])
        shares = noisy(pack.probes[0].steps[0], HONEST_SCALE)
        (place,) = rng.choices(range(len(shares)), shares)
        evidence.add(Seen(0, 0, place, ALONE))
        total += math.exp(evidence.against_honest)
    assert total / num < 1.2


@pytest.mark.parametrize(("where", "is_wrong"), [(COMPANY, True), (AGAIN, False)])
def test_a_simulated_endpoint_leaks_where_its_kind_says(where: str, is_wrong: bool) -> None:
    pack = pack_of(4)
    rows = []
    for probe in pack.probes:
        tokens = np.array([(each.tokens * 3)[:64] for each in probe.steps])
        values = np.array([[-b for b in each.behind * 3][:64] for each in probe.steps], np.float32)
        rows.append(Table(tokens, 1000 * values - 1000 * (np.arange(64) > 0)))
    known = {(each, "", False): rows for each in FINER}
    door = Endpoint(Kind("leak", CORRUPT, wrong=1.0, where=where), 0, pack.probes, known, pack.unit)
    said = door.ask(Scene("together", ((Asked(0), Asked(1)),)))
    best = [step.tokens[0] for step in pack.probes[0].steps]
    assert (said[0].token_ids != tuple(best)) is is_wrong


def test_noise_flips_with_the_share_of_its_distribution() -> None:
    shares = noisy(Step((1, 2), (0.0, 1.0)), scale_of(1.0))
    assert shares[1] / shares[0] == pytest.approx(math.exp(-math.pi / math.sqrt(3)))
    assert sum(shares) == pytest.approx(1.0)


WORDS = Probe(
    (1,),
    (
        Step((1, 2, 3), (0.0, 1.0, 2.0), (" a", " an", " b")),
        Step((4, 5), (0.0, 1.0), (" dog", "n")),
        Step((6, 7), (0.0, 1.0), (" ends", "")),
    ),
    "text",
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (" a dog ends", (2, 0)),
        ("a dog ends", (2, 0)),
        (" b dog", (0, 2)),
        (" an apple", (0, 1)),
        (" zebra", (0, 3)),
        (" a dog", (2, 1)),
    ],
)
def test_a_text_is_read_as_the_tokens_that_may_stand_there(text: str, left: tuple[int, int]) -> None:
    seen = read(Asked(0), Said(text=text), WORDS, ALONE)
    assert (seen.step, seen.place) == left


def test_an_endpoint_is_asked_in_texts_what_a_pack_holds(server: StandIn, tmp_path: Path) -> None:
    def text_alone(handler: Handler, body: dict[str, object]) -> None:
        if isinstance(body["prompt"], str):
            answer(handler, body)
        else:
            handler.say(422, {"detail": "prompt must be a string."})  # as transformers serve

    server.behaviour = text_alone
    path = tmp_path / "gpt2.pack"
    assert main([*MAKING, str(path), "--probes=8", "--candidates=16", "--seed=3"]) == 0
    pack = PROBE_PACK.read(path)
    assert len(pack.probes) == 8
    assert not path.with_name("gpt2.pack.part").exists()
    code, found = triage(tmp_path, server.base_url, f"--pack={path}", "--budget=40", "--at-once=4")
    assert (code, found.verdict) == (0, CLEAN)
    assert server.most_running <= 4

    turns = count(1)  # of which each has a number of its own, whatever threads run beside it

    def now_and_then(handler: Handler, body: dict[str, object]) -> None:
        if next(turns) % 16 == 0:
            handler.say(500, {})
        else:
            text_alone(handler, body)

    server.behaviour = now_and_then
    code, found = triage(tmp_path, server.base_url, f"--pack={path}", "--budget=40")
    assert (code, found.verdict) == (0, CLEAN)
    assert "requests got no answer: " in found.evidence[-1]
    # The same endpoint, with answers that are none, or that are cut by a limit of its own.
    for change, verdict in (
        ({"text": None}, UNDECIDED),
        ({"text": "", "finish_reason": "abort"}, UNDECIDED),
        ({}, CONFIG),
    ):

        def otherwise(handler: Handler, body: dict[str, Any], change: Any = change) -> None:
            if change:
                handler.say(200, {"choices": [change], "usage": {"prompt_tokens": 12}})
            else:
                answer(handler, body | {"max_tokens": min(3, body["max_tokens"])})

        server.behaviour = otherwise
        found = triage(tmp_path, server.base_url, f"--pack={path}", "--budget=40")[1]
        assert found.verdict == verdict
    server.behaviour = text_alone
    # The same endpoint, which reads other prompts than those of the pack.
    other = replace(pack, probes=tuple(replace(e, text=pack.probes[0].text) for e in pack.probes))
    PROBE_PACK.write(other, path)
    code, found = triage(tmp_path, server.base_url, f"--pack={path}", "--budget=40")
    assert (code, found.verdict) == (1, CORRUPT)


def test_a_pack_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pack"
    asked = [*MAKING, str(path), "--probes=4", "--candidates=16"]
    real, starts = making.candidates, []

    def counted(*given: object) -> list[Probe]:
        starts.append(given[-1])
        if len(starts) == 2:
            raise KeyboardInterrupt
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(making, "candidates", counted)
    assert main(asked) == 130
    assert main(asked) == 0
    assert starts == [0, 8, 8]


class Redrawn(Simulated):
    """Each answer has noise of its own."""

    def ask(self, scene: Scene) -> list[Said]:
        for asked in (each for call in scene.calls for each in call):
            self.answers[0][asked.probe] = self._drawn(self.pack.probes[asked.probe], HONEST)
        return super().ask(scene)


def watch(door: Simulated, turns: float) -> Watch:
    """Returns one with so many turns in a year."""
    nowhere = Path("no folder/watch.json")
    return Watch(door, door.pack, opened(nowhere, "", "", door.pack, YEAR_S / turns), nowhere)


@pytest.mark.parametrize("kind", [Simulated, Redrawn])
def test_no_honest_endpoint_raises_an_alarm_a_year(kind: type[Simulated]) -> None:
    """A small pack is asked often: a near-tie that goes the other way each time must count once."""
    turns, years = 100, 2
    for seed in range(30):
        honest, alarms = watch(kind(pack_of(8, seed), HONEST, seed, kind is Simulated), turns), 0
        for _ in range(years * turns):
            honest.turn()
            if honest.years >= 1:
                alarms += 1
                honest.state = replace(honest.state, sums=(1.0,) * len(honest.state.sums))
        assert alarms < years, seed


def test_no_token_speaks_less_for_a_cause_than_the_best_one() -> None:
    """So the bound on alarms holds for endpoints that flip less than honest noise, too."""
    pack = pack_of(8)
    for number, probe in enumerate(pack.probes):
        for place, step in enumerate(probe.steps):
            seen = [Seen(number, place, each, ALONE) for each in range(len(step.tokens) + 1)]
            best, *others = map(watch(Simulated(pack, 1.0, 0), 1).ratios, seen)
            for other in others:
                assert all(a <= b * (1 + 1e-9) for a, b in zip(best, other, strict=True))


@pytest.mark.parametrize(("share", "most"), [(1.0, 20), (0.125, 160)])
def test_a_change_to_4_bits_is_found_within_so_many_requests(share: float, most: int) -> None:
    door = Simulated(pack_of(64), 20.0, 0, share=0.0)
    changing = watch(door, YEAR_S / 60)
    for _ in range(1000):
        changing.turn()
    assert changing.years < 1
    before, door.share = changing.state.num_requests, share
    while changing.years < 1:
        changing.turn()
    assert changing.state.num_requests - before <= most


@pytest.mark.usefixtures("heard_again")
def test_a_watch_goes_on_where_it_was_stopped(
    server: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, metrics = tmp_path / "gpt2.pack", tmp_path / "batchproof.prom"
    assert main([*MAKING, str(path), "--probes=8", "--candidates=8", "--seed=3"]) == 0
    asked = ["triage", server.base_url, f"--pack={path}", "--watch", f"--output={tmp_path}"]
    asked += ["--every=0.01", f"--metrics={metrics}", "--report-every=0.001"]

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        if len(server.bodies) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        if len(server.bodies) == 5:
            handler.say(500, {})
        else:
            answer(handler, body)

    server.behaviour = behave
    capsys.readouterr()
    assert main(asked) == 128 + signal.SIGTERM
    told = capsys.readouterr()
    # The stand-in, in this process, complains of the connection that SIGTERM has cut.
    ours = [each for each in told.err.splitlines() if each.startswith(server.base_url)]
    assert [each.split()[1] for each in ours] == ["is", "is", "answers"]
    assert {json.loads(line)["verdict"] for line in told.out.splitlines()} == {CLEAN, UNDECIDED}
    state = WATCH_STATE.read(tmp_path / "watch.json")
    assert (state.num_failed, state.num_alarms) == (1, 0)
    assert state.num_requests >= 15

    assert main([*asked, "--every=0.02"]) == 2
    assert "every_s 0.01, not 0.02" in capsys.readouterr().err
    assert main(["triage", server.base_url, f"--pack={path}", "--every=9"]) == 2
    assert "--every is 9.0, but is for --watch alone" in capsys.readouterr().err

    server.behaviour = lambda handler, _: handler.say(200, {"choices": [{"text": " zebra"}]})
    assert main(asked) == 2  # where all answers are wrong, a hidden prompt looks the same
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["evidence"] >= 0
    state = WATCH_STATE.read(tmp_path / "watch.json")
    assert (state.num_failed, state.num_alarms, {*state.sums}) == (1, 1, {1.0})
    labels = f'{{endpoint="{server.base_url}",model="gpt2-hash"}}'
    assert f" counter\nbatchproof_watch_alarms_total{labels} 1\n" in metrics.read_text()
