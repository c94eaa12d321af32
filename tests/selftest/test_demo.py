"""`batchproof demo`: what it shows is what the engines did, and wrong input is one sentence."""

import re
from dataclasses import replace

import pytest

from batchproof import demo
from batchproof.__main__ import main
from batchproof.api import RowRecord
from batchproof.demo.experiment import TimedRun
from batchproof.run.timeline import is_prefill

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_demo_shows_what_the_engines_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "gpt2-random", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert text.count("8 of 8 answers equal, 81 tokens compared, 0 near-ties") == 3
    assert "Batching changed nothing but the speed." in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert text.isascii()
    (ruler,) = (line for line in lines if line.startswith("     barrier"))
    assert [place - 15 for place, each in enumerate(ruler) if each == "^"] == [21, 41]
    slots = [line.split()[2] for line in lines if re.match(r" +slot \d", line)]
    assert [len(slot) for slot in slots] == [51, 51, 51, 31, 31, 31, 31, 31, 31]
    assert [slot[0] for slot in slots] == ["A", "B", "C"] * 3, "each takes the lowest free slot"
    for group in (slots[:3], slots[3:6], slots[6:]):
        for letter, (_, cap) in zip("ABCDEFGH", demo.EXAMPLES, strict=True):
            owned = [each for slot in group for each in slot if each.upper() == letter]
            # The step that prefills a prompt also brings its first token.
            assert (len(owned), owned.count(letter)) == (cap, 1), letter
    numbers = {line[3:41].strip(): line[41:].split() for line in lines if len(line) > 41}
    assert numbers["slot-steps"] == [str(3 * 51), str(3 * 31), str(3 * 31)]
    assert numbers["of which busy"] == numbers["new tokens"] == ["81"] * 3
    assert " ".join(numbers["freed slots refilled in the next step"]) == "2 of 6 5 of 5 5 of 5"
    # Wave by wave: 3 x (28 + 21), 3 x (61 + 19), 2 x (22 + 8); without padding and idle rows:
    useful = sum(len(prompt) + cap - 1 for prompt, cap in demo.EXAMPLES)
    assert numbers["token positions computed"] == [str(147 + 240 + 60), str(useful), str(useful)]


def test_the_last_chunk_of_a_prompt_is_prefill_though_it_be_one_token() -> None:
    assert is_prefill(RowRecord("A", 4, 1, True), prompt_len=5)
    assert not is_prefill(RowRecord("A", 5, 1, True), prompt_len=5)


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
    options = ["--prompt", "one\ttwo", "--prompt", "three"]
    assert main(["demo", "--model", "gpt2-random", "--device", "cpu", *options]) == 1
    out = capsys.readouterr().out
    assert "'one\\ttwo'" in out
    assert "static      2 of 2 answers equal" in out
    assert "ragged      1 of 2 answers equal" in out
    assert "ragged DIFFERS: P1 parity is broken: request 'A' step 0" in out
    assert "WRONG ANSWERS from ragged" in out
