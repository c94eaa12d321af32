"""Engines that never return, end their process, or raise what ends a session: each costs its own tests,
the run says what it waits for, and what was found so far is kept."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from batchproof.api import Request
from batchproof.errors import EngineHang
from batchproof.findings.finding import Rule, Subject, found
from batchproof.plugin.isolation import complete_report
from batchproof.plugin.items import record_of
from batchproof.records.journal import entries
from batchproof.records.trial_record import TrialRecord
from batchproof.run import time_limit
from batchproof.run.call_notes import CallNote
from batchproof.workload.workloads import Workload
from tests.selftest.conftest import HEAD, RunSuite, Session

Bad = Callable[..., Session]

SUITE = f"""{HEAD}
@pytest.mark.promise(id="P1")
@pytest.mark.parametrize("name", {{names}})
def test_it(trial, name):
    trial.check(Workload((Request(name, (1, 2), 2),)))
"""
ACTS = {  # what an engine does in a call -> the promise that this breaks, and words of the report
    "raise RuntimeError('no cheese')": ("P1", "the engine raised RuntimeError: no cheese"),
    "raise KeyboardInterrupt": ("P1", "the engine raised KeyboardInterrupt"),
    "pytest.skip('no')": ("P1", "the engine raised Skipped: no"),
    "pytest.exit('no')": ("P1", "the engine raised Exit: no"),
    "forever()": ("P1", "the engine raised RecursionError: maximum recursion"),
    "json.loads('[')": ("P1", "in act: json.loads('[')"),
    "return None": ("P4", "generate returned a NoneType"),
    "return [replace(done[0], finish_reason='length')]": (
        *("P4", "has finish_reason 'length', but should be a batchproof.api.FinishReason"),
    ),
    "time.sleep(9)": ("P10", "generate did not return within 1 s"),
    "try: time.sleep(9)\n        except BaseException: return done": (
        *("P10", "s, but should within 1 s: it swallowed the exception that ends it"),
    ),
}
ENGINE = """
import json, os, pytest, signal, time, warnings
from dataclasses import replace
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.static import StaticEngine

def forever():
    forever()

class Engine(StaticEngine):
    def generate(self, requests):
        done = super().generate(requests)
        act = ACTS.get(requests[0].request_id)
        return act(done) if act else done

class Endless:
    num_built = 0
    def __init__(self, model, config):
        Endless.num_built += 1
        while Endless.num_built < 2:  # a second one would be an engine
            time.sleep(0.01)
        self.generate = None

class Fickle(StaticEngine):
    num_calls = 0
    def generate(self, requests):
        Fickle.num_calls += 1
        warnings.warn("this engine is old")
        done = super().generate(requests)
        if Fickle.num_calls % 3 != int(requests[0].request_id):
            return done
        return [replace(done[0], token_ids=(done[0].token_ids[0] ^ 1,))]

class Records(RaggedEngine):
    trace = [{}]

class OnceBroken(RaggedEngine):
    num_reads = 0
    @property
    def trace(self):
        self.num_reads += 1
        if self.num_reads == 2:
            raise RuntimeError("out of cheese")
        return super().trace

ACTS = {}
"""
ACT = """
def act(done):
        {act}
ACTS["{name}"] = act
"""


@pytest.fixture
def bad(run_suite: RunSuite) -> Bad:
    """`bad(acts, *arguments)` runs a test that is right, and one for each act of the engine, which has
    the name of the act."""

    def run(acts: Mapping[str, str], *arguments: str) -> Session:
        code = "".join(ACT.format(name=name, act=act) for name, act in acts.items())
        engine = [] if any("--engine=" in each for each in arguments) else ["--engine=mine.py:Engine"]
        suite = SUITE.format(names=["a", *acts])
        return run_suite(*engine, *arguments, mine=ENGINE + code, test_mini=suite)

    return run


def test_an_engine_that_never_returns_is_met_once(bad: Bad) -> None:
    engines = ("--engine=mine.py:Endless", "--engine=static")
    models = ("--model=gpt2-random", "--model=llama-random")
    run = bad({}, *engines, *models, "--diagnose-for=0", "--engine-time-limit=1")
    assert run.exit_status == pytest.ExitCode.TESTS_FAILED, run.output
    assert "P10 liveness is broken: building the engine did not return within 2 s" in run.output
    assert run.cell("P1 parity").split() == ["-", "2"]
    assert run.cell("P10 liveness").split() == ["FAIL", "2", "-"]


def test_what_an_engine_does_costs_its_own_test(bad: Bad, tmp_path: Path) -> None:
    """In one session: what ends a session elsewhere, wrong answers, and traces that cannot be read."""
    acts = {f"act{number}": act for number, act in enumerate(ACTS)}
    engines = [f"--engine=mine.py:{name}" for name in ("Engine", "Records", "OnceBroken")]
    run = bad(acts, *engines, "--diagnose-for=0", "--engine-time-limit=1", "--journal=j.jsonl")
    assert run.exit_status == pytest.ExitCode.TESTS_FAILED, run.output
    kept = {each.test.partition("::")[2]: each for each in entries(tmp_path / "j.jsonl")}
    assert len(kept) == 3 * (1 + len(ACTS))
    expected = {f"Engine-gpt2-random-act{n}": each for n, each in enumerate(ACTS.values())}
    for name in ("a", *acts):
        expected[f"Records-gpt2-random-{name}"] = (
            *("P11", "trace is a list of dict, but should be a sequence of"),
        )
        expected[f"OnceBroken-gpt2-random-{name}"] = ("P1", "in trace: raise RuntimeError")
    assert kept.pop("test_it[mine.py:Engine-gpt2-random-a]").outcome == "passed"
    for name, (promise, words) in expected.items():
        entry = kept[f"test_it[mine.py:{name}]"]
        assert entry.outcome == "failed", entry
        assert entry.record is not None
        assert entry.record.failure is not None
        assert entry.record.failure.promise == promise, entry.report
        assert words in entry.report, entry.report


FICKLE = f"""{HEAD}
from hypothesis import given, strategies as st

@pytest.mark.promise(id="P1")
@pytest.mark.parametrize("name", ["0", "1", "2"])
@given(data=st.data())
def test_it(trial, name, data):
    for _ in range(4):
        token = data.draw(st.integers(0, 9))
        trial.check(Workload((Request(name, (token,), 1),)))
"""


def test_an_engine_that_is_wrong_now_and_then_breaks_its_promise(bad: Bad, tmp_path: Path) -> None:
    """The run that Hypothesis replays comes out otherwise, and draws other values: what it says of the
    strategy is no verdict. Nor is a warning of the engine."""
    (tmp_path / "test_fickle.py").write_text(FICKLE)
    run = bad({}, "--engine=mine.py:Fickle", "test_fickle.py")
    for words in (
        "P1 parity is broken: request '0' step 0: got token",
        "margin of the right token",
        "engine: mine.py:Fickle    model: gpt2-random (float32, cpu)",
        "- name: found-by-a-test",
        "again: pytest '",
        "run once more, the same workload gave another result",
    ):
        assert words in run.output, run.output
    assert "Inconsistent data generation" not in run.output
    assert run.cell("P1 parity") == "FAIL 3"


def disguising(act: Callable[[], object]) -> None:
    """As TorchScript does with what is raised in an operator that it calls."""
    try:
        act()
    except BaseException as error:
        raise RuntimeError("the operation failed in the interpreter") from error


def test_an_alarm_that_comes_out_as_another_error_is_a_hang() -> None:
    computed = r"the process of the tests computed for 0\.0 s of that"
    words = rf"generate did not return within 0\.05 s\n{computed}"
    with pytest.raises(EngineHang, match=words), time_limit.time_limit(0.05, "generate"):
        disguising(lambda: time.sleep(9))


@pytest.mark.parametrize("at", ["inside", "after"])
def test_the_alarm_of_a_surrounding_limit_goes_off_on_time(at: str) -> None:
    """A time limit once took the alarms of pytest-timeout and of outer time limits away."""

    @time_limit.time_limit(0.1, "outer")
    def surrounding() -> None:
        with time_limit.time_limit(9, "inner"):
            time.sleep(9 if at == "inside" else 0)
        time.sleep(9)

    began = time.monotonic()
    with pytest.raises(EngineHang, match=r"outer did not return within 0\.1 s"):
        surrounding()
    assert time.monotonic() - began < 4
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


STUBBORN = """
import signal
from batchproof.run import time_limit
from batchproof_engines.static import StaticEngine
time_limit.GRACE_S = 0.1

class Engine(StaticEngine):
    def generate(self, requests):
        if requests[0].request_id == "x":
            while True:
                try: signal.pause()
                except BaseException: continue
        return super().generate(requests)
"""


def test_an_engine_that_swallows_every_exception_ends_the_run_in_words(tmp_path: Path) -> None:
    """It outlived its time limit for ever."""
    (tmp_path / "mine.py").write_text(STUBBORN)
    (tmp_path / "test_mini.py").write_text(SUITE.format(names=["a", "x", "y"]))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "batchproof.plugin", "--model=gpt2-random"]
    options = ["--engine=mine.py:Engine", "--engine-time-limit=1", "--journal=j.jsonl"]
    run = subprocess.run(
        [*command, *options], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == time_limit.SWALLOWED_STATUS, run.stdout + run.stderr
    words = "generate did not return within 1 s, and swallowed 3 exceptions that end it"
    assert f"engine mine.py:Engine on gpt2-random: {words}" in run.stderr
    kept = {each.test.partition("::")[2]: each.outcome for each in entries(tmp_path / "j.jsonl")}
    assert kept == {"test_it[mine.py:Engine-gpt2-random-a]": "passed"}


@pytest.mark.usefixtures("heard_again")
def test_sigterm_keeps_what_was_found(bad: Bad, tmp_path: Path) -> None:
    kill = {"x": "os.kill(os.getpid(), signal.SIGTERM)", "y": "return done"}
    run = bad(kill, "--diagnose-for=0", f"--table={tmp_path}/table.json")
    assert run.exit_status == 143, run.output
    assert "Interrupt: SIGTERM" in run.output
    assert run.cell("P1 parity") == "1"
    assert '"is_complete": false' in (tmp_path / "table.json").read_text()


def test_a_diagnosis_that_hangs_keeps_the_finding(bad: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> None:
        raise EngineHang("the diagnosis hangs")

    monkeypatch.setattr("batchproof.plugin.verdicts.diagnose", hang)
    run = bad({"x": "raise KeyError"}, "--diagnose-for=20")
    assert "the diagnosis itself failed: EngineHang: the diagnosis hangs" in run.output
    assert run.cell("P1 parity") == "FAIL 1"


def test_a_process_that_ends_in_a_diagnosis_keeps_the_finding() -> None:
    record = TrialRecord("mine", "gpt2-hash", ("P1",))
    subject = Subject("mine", None, "gpt2-hash", "cpu", "float32")
    workload = Workload((Request("a", (1,), 1),))
    how = found(Rule.DIED, what="the process ended with status 7 in generate", evidence=(), at=None)
    noted = CallNote(subject=subject, record=record, workload=workload, report="P1 is broken: got 3")
    texts = []
    for note in (noted, CallNote(subject=subject, record=record, workload=workload, known="a bug")):
        report = pytest.TestReport("t", ("t", None, "t"), {}, "failed", "crashed", "call")
        assert complete_report(report, note, how) == record_of(report)
        texts.append(report.longreprtext)
    assert texts[0].startswith(
        "P1 is broken: got 3\nits cause was being sought when this happened: the p"
    )
    assert texts[1].startswith("P10 liveness is broken: the process ended with status 7 in generate")
    assert (report.outcome, report.wasxfail) == ("skipped", "a bug")
