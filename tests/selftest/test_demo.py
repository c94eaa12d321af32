"""`batchproof demo`: what it shows is what the engines did, and wrong input is one sentence."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import pytest

from batchproof import demo
from batchproof.__main__ import main
from batchproof.api import Completion, RowRecord, StepRecord
from batchproof.demo.experiment import TimedRun, judge, make_experiment
from batchproof.demo.pages import draw_timelines, letters, quoted, shortened
from batchproof.places import ROOT
from batchproof.run.timeline import Cell, Timeline, assign_slots, build_timeline, num_refills, waves
from tests.selftest.conftest import oracle_of

pytestmark = pytest.mark.usefixtures("one_thread")
SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Shown:
    """One default run on a small model: exit code, text, picture."""

    exit_code: int
    text: str
    svg: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    path = tmp_path_factory.mktemp("demo") / "timeline.svg"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as text:
        patch.setenv("COLUMNS", "80")
        exit_code = main(["demo", "--model", "gpt2-random", "--device", "cpu", "--svg", str(path)])
    return Shown(exit_code, text.getvalue(), path.read_text(encoding="utf-8"))


def section(text: str, number: int) -> list[str]:
    """The lines of one numbered section."""
    start = re.search(rf"^{number}  ", text, re.MULTILINE)
    assert start is not None, f"there is no section {number}"
    end = re.search(rf"^{number + 1}  ", text, re.MULTILINE)
    return text[start.start() : end.start() if end else None].splitlines()


def record(
    rows: Sequence[tuple[str, int, int]] = (),
    admitted: str = "",
    finished: str = "",
    preempted: str = "",
    waiting: str = "",
) -> StepRecord:
    return StepRecord(
        tuple(RowRecord(*row, is_sampled=True) for row in rows),
        tuple(waiting),
        tuple(admitted),
        tuple(finished),
        tuple(preempted),
    )


def test_the_demo_shows_what_the_engines_did(shown: Shown) -> None:
    check = "\n".join(section(shown.text, 6))
    assert shown.exit_code == 0
    assert check.count("8 of 8 answers equal, 81 tokens compared, 0 near-ties") == 3
    assert "Batching changed nothing but the speed." in check
    lines = [each for each in shown.text.splitlines() if "timeline.svg" not in each]
    assert max(map(len, lines)) <= 80
    assert "".join(lines).isprintable()
    assert shown.text.isascii()
    log = "\n".join(section(shown.text, 2))
    assert re.findall(r"BATCH BARRIER after step (\d+)", log) == ["22", "42"]
    assert "slots 1 and 3 stood idle while D, E, F, G and H waited" in log
    assert "8 pads + PREFILL(20)  done at step  22     0 idle steps" in log
    log = "\n".join(section(shown.text, 3))
    assert re.search(r"^   3 .*A ends$", log, re.MULTILINE)
    refilled = r"^   4 +D PREFILL\(14\) +B decode\(1\) +C decode\(1\) +D enters$"
    assert re.search(refilled, log, re.MULTILINE)
    said = "came free while a request waited: 5. Filled again in the very next step: 5."
    assert said in " ".join(log.split())


def test_timelines_and_totals_account_for_every_step(shown: Shown) -> None:
    drawn = section(shown.text, 4)
    slots = [line.split()[2] for line in drawn if re.match(r" +slot \d", line)]
    assert [len(slot) for slot in slots] == [51, 51, 51, 31, 31, 31, 31, 31, 31]
    for group in (slots[:3], slots[3:6], slots[6:]):
        for letter, (_, cap) in zip("ABCDEFGH", demo.EXAMPLES, strict=True):
            owned = [each for slot in group for each in slot if each.upper() == letter]
            # The step that prefills a prompt also brings its first token.
            assert (len(owned), owned.count(letter)) == (cap, 1), letter
    numbers = {
        line[3:41].strip(): line[41:].split() for line in section(shown.text, 5) if len(line) > 41
    }
    assert numbers["slot-steps"] == [str(3 * 51), str(3 * 31), str(3 * 31)]
    assert numbers["of which busy"] == numbers["new tokens"] == ["81"] * 3
    # Wave by wave: 3 x (28 + 21), 3 x (61 + 19), 2 x (22 + 8); without padding and idle rows:
    useful = sum(len(prompt) + cap - 1 for prompt, cap in demo.EXAMPLES)
    assert numbers["token positions computed"] == [str(147 + 240 + 60), str(useful), str(useful)]


def test_slots_are_read_from_a_trace() -> None:
    trace = [
        record(admitted="ABC"),
        record(finished="AB"),
        record(admitted="D"),
        record(preempted="C"),
        record(admitted="EC", finished="D"),
        record(admitted="F"),
    ]
    assert assign_slots(trace, 3) == [
        {"A": 0, "B": 1, "C": 2},
        {"A": 0, "B": 1, "C": 2},
        {"C": 2, "D": 0},
        {"D": 0},
        {"D": 0, "E": 1, "C": 2},
        {"E": 1, "C": 2, "F": 0},
    ]
    with pytest.raises(ValueError, match="step 1 admits 'C', but all 2 slots are taken"):
        assign_slots([record(admitted="AB"), record(admitted="C")], 2)
    waited = [record(finished="A", waiting="C")]
    filled = [record(admitted="C", finished="BC"), record(waiting="D")]
    assert num_refills(waited + filled) == (1, 1)
    assert num_refills([*waited, record()]) == (1, 0)
    assert waves([record(admitted="A"), record(), record(admitted="B")]) == [range(2), range(2, 3)]


@pytest.mark.parametrize(
    ("trace", "prompt_len", "drawn"),
    [  # a last chunk of one token is prefill; a pause is idle; a prompt fed again is prefill
        ([record([("A", 0, 4)], "A"), record([("A", 4, 1)]), record([("A", 5, 1)], "", "A")], 5, "AAa"),
        (
            [
                *(record([("A", 0, 4)], "A"), record(), record([("A", 4, 1)])),
                record([("A", 0, 5)], admitted="A", preempted="A"),
            ],
            *(4, "A.aA"),
        ),
    ],
)
def test_a_timeline_tells_prefill_decode_and_pauses(
    trace: list[StepRecord], prompt_len: int, drawn: str
) -> None:
    assert letters(build_timeline(trace, 1, {"A": prompt_len}).row(0)) == drawn


def test_a_timeline_longer_than_the_line_is_scaled_and_says_so() -> None:
    steps = tuple((Cell("A", 1, False) if step % 4 else None,) for step in range(200))
    lines = draw_timelines({"static": Timeline(1, steps, (99,))}, 80)
    assert max(map(len, lines)) <= 80
    assert lines[0] == "One column stands for 3 steps: it shows what fills most of them."
    assert set(lines[3].split()[2]) == {"a"}
    assert lines[4].index("^") - lines[1].index("1") == 99 // 3


def test_each_picture_has_every_request_in_each_panel_and_every_barrier(shown: Shown) -> None:
    docs = (ROOT / "docs" / "timeline.svg").read_text(encoding="utf-8")
    for svg in (shown.svg, docs):
        root = ElementTree.fromstring(svg)
        words = [text.text for text in root.iter(f"{SVG}text")]
        assert [words.count(letter) for letter in "ABCDEFGH"] == [3] * len(demo.EXAMPLES)
        dashed = [e for e in root.iter(f"{SVG}path") if "stroke-dasharray" in e.get("style", "")]
        assert len(dashed) == 2


def test_a_wrong_answer_is_named_and_the_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = demo.run_timed

    def lying(name: str, case: demo.Experiment, has_waves: bool) -> TimedRun:
        run = honest(name, case, has_waves)
        first, *others = run.completions
        wrong = replace(first, token_ids=tuple(255 - token for token in first.token_ids))
        return replace(run, completions=(wrong, *others)) if name == "ragged" else run

    monkeypatch.setattr(demo, "run_timed", lying)
    options = ["--prompt", "one\ttwo", "--prompt", "雪がふる" * 9, "--max-new-tokens", "2"]
    assert main(["demo", "--model", "gpt2-random", "--device", "cpu", *options]) == 1
    out = capsys.readouterr().out
    assert '"one\\ttwo"' in out
    assert "static      2 of 2 answers equal" in out
    assert "ragged      1 of 2 answers equal" in out
    assert "ragged DIFFERS: P1 parity is broken: request 'A' step 0" in out
    assert "WRONG ANSWERS from ragged" in out


def test_a_near_tie_is_counted_and_told_apart_from_a_wrong_answer() -> None:
    oracle = oracle_of("gpt2-random")
    case = make_experiment(oracle.subject, [("abc", 1)], 1)
    (request,) = case.requests
    best, second = oracle.score(request.prompt_token_ids, (0,)).topk(2).indices[0].tolist()
    # The two best tokens lie closer together than the error that this oracle claims to have.
    oracle.error = replace(oracle.error, max_abs=1e3, near_tie_share=1.0)  # type: ignore[misc]
    judgement = judge(case, [Completion("A", (second,), oracle.expected(request)[1])], oracle)
    assert (judgement.num_equal, judgement.ledger.num_near_ties, judgement.failures) == (0, 1, ())
    assert judgement.near_ties == (f"A token 1: {second} instead of {best}, within rounding",)


def test_control_c_ends_quietly_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "load_model", interrupted)
    assert main(["demo", "--model", "gpt2-random"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_pipe_that_nobody_reads_ends_quietly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed_pipe:
        monkeypatch.setattr("sys.stdout", closed_pipe)
        assert main(["demo", "--model", "gpt2-random", "--device", "cpu"]) == 141
    assert capsys.readouterr().err == ""


def test_texts_and_ids_are_shortened_to_the_width_they_are_given() -> None:
    assert quoted("rain", 6) == '"rain"'
    assert quoted("rain tomorrow", 10) == '"rain ..."'
    assert quoted("雪雪雪雪", 9) == '"雪雪..."'
    assert shortened([1, 22, 333], 80) == "1 22 333"
    assert shortened([11, 22, 33, 44, 55, 66, 77], 19) == "11 22 ... (5 more)"
