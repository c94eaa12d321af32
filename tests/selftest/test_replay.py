"""`--repro` and `replay`: a written failure is reproduced, and is gone on an honest engine."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchproof.__main__ import main
from batchproof.api import Completion, EngineConfig, FinishReason, Request
from batchproof.cases.files import load_file
from batchproof.cases.runner import run_case
from batchproof.findings.finding import CaseNote, Failure, Rule, Run, Scene, Subject, found
from batchproof.findings.finding_text import failure_text
from batchproof.models.embedded import NAN_MODEL
from batchproof.records.decode import decode, encode
from batchproof.records.journal import entries
from batchproof.replay import replay_command
from batchproof.replay.record import FailureFile, StoredRun, read_failure, write
from batchproof.requirements.promises import Promise
from batchproof.run.engine_names import FAULT_PREFIX
from batchproof.run.failures import ConformanceFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial
from batchproof.workload.workloads import CLEAR, DEFAULT_TIME_LIMIT_S, UPDATE, Interruption, Workload
from batchproof_lab.suite_run import run_suite
from tests.selftest.conftest import LaboratoryFor

MODEL = "gpt2-random"
HANG_LIMIT_S = 2  # an honest engine keeps it on a machine that stands still for a second

CURATED = "model-is-left-as-it-was"
# Fault -> the test that finds it, and the rule. Hypothesis draws constants of the modules that a
# process has loaded too, so a seed alone does not fix what is drawn.
FAULTS = {
    "mask_ignores_sequence": ("rewriting_the_neighbours", "relation"),  # two runs compared
    "first_token_streamed_twice": ("events_add_up", "cap or token"),  # as the end is drawn
    "abort_of_a_waiting_request_ignored": ("a_waiting_request", "cancelled-token"),
    "abort_takes_undelivered_events_along": ("takes_nobody", "refusal-event"),
    "building_seeds_the_global_generator": (CURATED, "world"),
    "nan_passes_the_mask": ("what_is_not_finite", "token"),  # some requests have no right answer
}
MODEL_OF = {"nan_passes_the_mask": NAN_MODEL}


@pytest.fixture(scope="module")
def lab(laboratory_for: LaboratoryFor) -> Laboratory:
    """Models and right answers for the hunts and, where a test passes it on, for the command."""
    return laboratory_for(DEFAULT_TIME_LIMIT_S)


def written(engine: str, test: str, directory: Path, lab: Laboratory) -> Path:
    """The failure file of the first failure that the hunt finds."""
    model = MODEL_OF.get(engine.removeprefix(FAULT_PREFIX), MODEL)
    arguments = ["-x", "-k", test, f"--model={model}", "--hypothesis-seed=0"]
    findings = run_suite(engine, [*arguments, f"--repro={directory}", "--diagnose-for=0"], lab)
    assert findings.catches, findings.output
    (path,) = directory.glob("*.json")
    hint = f"replay: python -m batchproof replay {path}"
    if engine.endswith(".py:Engine"):  # it works in any folder
        hint += f" --engine={Path(engine).resolve()}"
    assert hint in findings.catches[0].report.splitlines()
    return path


def replay(path: Path, *arguments: str) -> int:
    return main(["replay", str(path), *arguments])


def trial_of(lab: Laboratory, engine: str, model: str = MODEL, promise: Promise = Promise.P2) -> Trial:
    return Trial(lab, resolve_engine(engine), lab.oracle(model), promise)


def case_fails(lab: Laboratory, path: Path, engine: str, model: str = MODEL) -> bool:
    (case,) = load_file(path)
    try:
        run_case(trial_of(lab, engine, model, case.promise), case)
    except ConformanceFailure:
        return True
    return False


@pytest.mark.every(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_reproduced_by_its_file_and_its_case_and_gone_on_an_honest_engine(
    fault: str,
    lab: Laboratory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command has the laboratory of the hunt here; the tests below let it make its own."""
    test, rules = FAULTS[fault]
    path = written(f"fault:{fault}", test, tmp_path, lab)
    monkeypatch.setattr(replay_command, "Laboratory", lambda *_: lab)
    kept = read_failure(path)
    assert kept.is_shown_again
    assert kept.failure.rule.id in rules.split(" or ")
    assert (kept.failure.case is not None) == (test == CURATED), "a case is replayed as it stands"
    assert replay(path) == 1
    assert capsys.readouterr().out.startswith("REPRODUCED: ")
    assert replay(path, "--engine=ragged") == 0
    assert capsys.readouterr().out.startswith("gone: ")
    model = kept.failure.subject.model
    assert case_fails(lab, path.with_suffix(".yaml"), f"fault:{fault}", model)
    assert not case_fails(lab, path.with_suffix(".yaml"), "ragged", model)


def test_a_hang_is_reproduced(tmp_path: Path, laboratory_for: LaboratoryFor) -> None:
    fault, lab = "oversized_request_blocks_the_queue", laboratory_for(HANG_LIMIT_S)
    path = written(f"fault:{fault}", "larger_than_the_pool", tmp_path, lab)
    assert read_failure(path).failure.rule is Rule.HANG
    assert replay(path) == 1
    assert replay(path, "--engine=ragged") == 0


def run_of(name: str) -> Run:
    requests = (Request(name, (3, 1, 4), 3, frozenset({7})), Request("r1", (1, 5), -1))
    answer = Completion(name, (1, 2, 3), FinishReason.LENGTH)
    done = (Interruption(0, CLEAR), Interruption(3, UPDATE, 7))
    workload = Workload(requests, EngineConfig(num_blocks=9), (0, 1), ((name, 3),))
    return Run(2, replace(workload, weights=2, interruptions=done), (answer,))


def failure_of(run: Run, name: str) -> Failure:
    finding = found(Rule.CAP, name, 3, got=(1, 2), cap=2, num_tokens=3, finish_reason="stop", eos=[])
    subject = Subject("ragged", None, MODEL, "cpu", "float32")
    case = CaseNote("a-case", "cases/a.yaml:3", "because")
    return Failure(finding.under(Promise.P5, "afterwards"), Scene((run,), (run,)), subject, case)


def made_up(name: str = "r0") -> FailureFile:
    run = run_of(name)
    return FailureFile.of(
        failure_of(run, name),
        (run.completions[0], None),
        test="test_x.py::test",
        time_limit_s=2.0,
        compute_dtype=None,
        kv_cache_dtype="auto",
        is_shown_again=True,
    )


@pytest.mark.parametrize(("num_before", "words"), [(1, "calls:"), (20, "behind 20 calls to the same")])
def test_what_is_printed_to_paste_has_the_calls_before(num_before: int, words: str) -> None:
    run = run_of("r0")
    failure = failure_of(run, "r0")
    assert words in failure_text(replace(failure, scene=Scene((run,) * (num_before + 1))))
    assert words not in failure_text(failure)


@pytest.mark.parametrize("name", ["r0", "'dou\"ble'\nü"])
def test_a_file_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "failure.json"
    path.write_text(made_up(name).text(), encoding="utf-8")
    assert read_failure(path) == made_up(name)
    assert read_failure(path).runs[0].run() == run_of(name)
    text = CaseNote("\ud800", "cases/a.yaml:3", "because")
    assert decode(CaseNote, encode(text)) == replace(text, name="?"), "it is no Unicode"


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(made_up().text()) | changes)


SUBJECT = json.loads(made_up().text())["subject"]
PLAIN_RUN = StoredRun.of(Run(1, Workload((Request("r0", (3, 1, 4), 3),))))
NOT_SHOWN_AGAIN = replace(made_up(), runs=(PLAIN_RUN,), other_runs=(), case=None, is_shown_again=False)


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, (), "there is no result file"),
        ("{", (), "is no result file: it is not JSON"),
        (changed(rule="no-such-rule"), (), "is damaged: rule is 'no-such-rule', not one of "),
        (changed(subject=SUBJECT | {"engine": "none"}), (), "is no engine"),
        (NOT_SHOWN_AGAIN.text(), (), "cannot tell: one engine alone did not show it"),
        (made_up().text(), ("--engine=static",), "cannot tell: static lacks the capability "),
    ],
)
def test_what_cannot_be_judged_again_is_one_sentence_and_exit_code_2(
    content: str | None,
    options: Sequence[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "failure.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert replay(path, *options) == 2
    (line,) = "".join(capsys.readouterr()).splitlines()
    assert words in line


def test_nothing_is_written_over_and_the_record_names_the_file(tmp_path: Path, lab: Laboratory) -> None:
    journal, engine = tmp_path / "journal", "fault:cap_off_by_one"
    arguments = ["-x", "-k", "exactly_its_own_cap", f"--model={MODEL}", "--hypothesis-seed=0"]
    arguments += ["--diagnose-for=300"]  # it takes a second, but the machine may be busy
    run_suite(engine, [*arguments, f"--repro={tmp_path}", f"--journal={journal}"], lab)
    records = [each.record for each in entries(journal)]
    (failure,) = [each.failure for each in records if each and each.failure]
    assert (failure.promise, failure.rule, failure.cause) == ("P2", "cap", "CAP")
    assert failure.headline.startswith("P2 caps is broken: request ")
    assert failure.case is None
    assert failure.facts["num_tokens"] == int(str(failure.facts["cap"])) + 1
    assert failure.replay is not None
    path = Path(failure.replay)
    found = trial_of(lab, engine), read_failure(path).failure, tmp_path
    again = [write(*found, "again", "the-cap") for _ in "ab"]
    assert again[1].stem == f"{again[0].stem}-2"
    assert path.is_file()
