"""Nothing passes by accident: where nothing was shown, the run fails and says so in a sentence."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from batchproof.api import Completion, FinishReason, Request
from batchproof.errors import OracleError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle
from batchproof.plugin.writers.table import notes
from batchproof.records.trial_record import Ledger
from batchproof.run.registry import reference_factory
from batchproof_engines.model_support import sliding_window
from batchproof_lab.suite_run import run_suite
from tests.selftest.conftest import CHOOSY, HEAD, LACKING, RIGHT, RunSuite

SUITE = f"""{HEAD}
from hypothesis import assume, given, strategies as st
from batchproof.errors import CaseError

pytestmark = pytest.mark.promise(id="P1")

def test_right(trial):
    trial.check(WORKLOAD)
"""
OWN_MODELS = "--device=cpu"  # for who alters right answers, or a trial batch that has passed
HOLLOW = """
@given(data=st.data())
def test_no_example(trial, data):
    assume(False)


def test_no_comparison(trial):
    trial.run(WORKLOAD)


def test_no_answer(trial):
    trial.oracle._is_beyond_doubt = lambda *_: False  # for float64, which could do without
    trial.oracle._reference.generate = lambda requests: []
    trial.check(Workload((Request("b", (3, 4, 5), 2),)))


@given(data=st.data())
def test_no_answer_to_draw_from(trial, data):
    trial.oracle._reference.generate = lambda requests: []
    trial.oracle.right_tokens((7, 7, 7, 7), 2)
"""
WRONG_CASE = """
def test_wrong_case(trial):
    raise CaseError("cases/mine.yaml:3: the case is wrong")
"""
SHOWING = """
def test_once(trial):
    trial.check(WORKLOAD)
    trial.must_show('preemption', False)
    trial.must_show('preemption', True)


def test_never(trial):
    trial.check(WORKLOAD)
    trial.must_show('preemption', False)


def test_of_choice(trial):
    trial.check(WORKLOAD)
    trial.must_show('prefix_hit in a case', False)
"""


def test_a_test_that_shows_nothing_fails_and_blames_no_engine(run_suite: RunSuite) -> None:
    session = run_suite(OWN_MODELS, test_hollow=SUITE + HOLLOW + SHOWING)
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    assert "5 failed, 3 passed" in session.output
    for words in (
        "no examples: this test proves nothing",
        "this test passed without comparing anything",
        "no right answer of 2 tokens to the prompt of 3 tokens that starts [3, 4, 5]",
        "no right answer of 2 tokens to the prompt of 4 tokens",
        "P1 parity is broken: no example of this test shows this in its trace: preemption",
        "may do without, and has not shown: prefix_hit in a case",
    ):
        assert words in session.output, session.output
    assert session.cell("P1 parity") == "FAIL 1", "the others blame no engine"
    assert "4 failed by the harness itself, not by an engine" in session.output


def test_a_wrong_case_is_an_error_of_its_author(run_suite: RunSuite) -> None:
    session = run_suite(test_mini=SUITE + WRONG_CASE)
    session.require_usage_error("1 failed by a wrong case, not by an engine: see above")
    assert session.cell("P1 parity") == "1"


def test_a_run_that_compared_nothing_fails_and_one_of_no_test_says_so(run_suite: RunSuite) -> None:
    modules = {"mine": CHOOSY.replace("REFUSED", "''"), "test_some": f"{HEAD}{RIGHT}{LACKING}"}
    refused = run_suite("--engine=mine.py:choosy", "-k", "right", **modules)
    lacking = run_suite("-k", "lacking")
    for session, words in ((refused, "refused"), (lacking, "no cap")):
        assert session.exit_status == pytest.ExitCode.TESTS_FAILED
        assert "NOTHING WAS COMPARED" in session.output
        assert words in session.output
    Path("table.json").write_text("old")
    none = run_suite("-k", "paritty", "--table=table.json")
    assert "table.json: not written, for there is no table" in none.output
    assert Path("table.json").read_text() == "old"
    assert none.exit_status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no conformance test was selected by -k 'paritty'" in none.output


def test_a_mutant_that_refuses_a_model_which_the_engine_serves_fails(
    run_suite: RunSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window is one key too wide, so its own trial batch refuses the model."""
    models = (f"--model={name}" for name in ("gpt2-random", "mistral-window", "bamba-hash"))
    arguments = ("--engine=ragged", *models, OWN_MODELS)
    honest = run_suite(*arguments, test_mini=HEAD + RIGHT + RIGHT.replace("right", "again"))
    assert (honest.exit_status, honest.cell("P1 parity")) == (pytest.ExitCode.OK, "4"), honest.output
    assert "note: ragged refuses bamba-hash: 2 tests not run" in honest.output
    wider = "batchproof_engines.ragged.engine.sliding_window"
    monkeypatch.setattr(wider, lambda model: (window := sliding_window(model)) and window + 1)
    mutant = run_suite(*arguments)
    assert (mutant.exit_status, mutant.cell("P1 parity")) == (1, "FAIL 1"), mutant.output
    words = "P1 parity is broken: the engine refuses mistral-window, which it serves by the list of"
    assert words in mutant.output


def test_what_the_last_verdict_or_the_option_says_is_served_is_not_refused(run_suite: RunSuite) -> None:
    run = ("--engine=mine.py:choosy", "--model=gpt2-random", "--model=llama-random", "--verdict=v.json")
    for refused, options, words in (
        ("Llama", (), "choosy refuses llama-random: 1 test not run"),
        ("Nobody", (), "P1 parity"),
        ("Llama", (), "refuses llama-random, which it serves by its verdict of"),
        ("Llama", ("--dtype=bfloat16",), "choosy refuses llama-random: 1 test not run"),
        ("Llama", ("--serves=gpt2-random",), "choosy refuses llama-random: 1 test not run"),
        ("Llama", ("--serves=all",), "refuses llama-random, which it serves by --serves"),
        ("Llama", (), "refuses llama-random, which it serves by its verdict of"),
    ):
        mine = CHOOSY.replace("REFUSED", repr(refused))
        session = run_suite(*run, *options, mine=mine, test_mini=HEAD + RIGHT)
        assert words in session.output, session.output
        assert session.exit_status == ("which it serves" in words)


def test_a_model_without_right_answers_ends_the_session_in_a_sentence(
    run_suite: RunSuite, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "lru_width": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = RecurrentGemmaConfig(**sizes, **heads, num_hidden_layers=3, pad_token_id=0)
    RecurrentGemmaForCausalLM(config).save_pretrained(tmp_path)
    session = run_suite(f"--model={tmp_path}", test_mini=SUITE)
    session.require_usage_error(f"--model '{tmp_path}' has no right answers: ")
    assert "cannot serve RecurrentGemmaForCausalLM" in session.output


def logits(rows: int) -> torch.Tensor:
    return torch.zeros(rows, 256)


WRONG_ANSWERS: dict[str, Callable[[Request], Completion]] = {
    "gave no logits": lambda r: Completion(r.request_id, (1,) * 4, FinishReason.LENGTH),
    "gave 2 tokens": lambda r: Completion(r.request_id, (1, 1), FinishReason.LENGTH, logits=logits(2)),
    "gave token 256, which is none of": lambda r: Completion(
        r.request_id, (1, 256, 1, 1), FinishReason.LENGTH, logits=logits(4)
    ),
}


@pytest.mark.parametrize("words", WRONG_ANSWERS)
def test_a_reference_without_an_answer_is_named(oracle: Oracle, words: str) -> None:
    scripted = SimpleNamespace(generate=lambda asked: [*map(WRONG_ANSWERS[words], asked)])
    unanswered = Oracle(oracle.subject, lambda _model, _config: scripted)
    start = "no right answer of 3 tokens to the prompt of 2 tokens that starts [5, 6]: the reference "
    with pytest.raises(OracleError, match=re.escape(start + words)):
        unanswered.answer((5, 6), 3)


def test_integer_arithmetic_without_an_answer_is_named(oracle: Oracle) -> None:
    constructed = ModelUnderTest("constructed", oracle.subject.model, lambda _prompt, _length: [1])
    with pytest.raises(OracleError, match="its integer arithmetic gave 1 tokens"):
        Oracle(constructed, reference_factory()).right_tokens((5, 6), 3)


BOXED = """
from batchproof.run.registry import resolve_engine

class Box:
    def __init__(self, engine):
        self.generate = engine.generate

def factory(model, config):
    return Box(resolve_engine(NAME).factory(model, config))
"""


@pytest.mark.parametrize(
    ("name", "num_failed"), [("paged", 0), ("fault:evicted_prefix_is_still_found", 1)]
)
def test_an_engine_without_a_trace_meets_prefixes_and_is_not_said_to_have_shown_them(
    name: str, num_failed: int, tmp_path: Path
) -> None:
    (tmp_path / "boxed.py").write_text(BOXED.replace("NAME", repr(name)))
    chosen = ["-k", "given_away", "--model=gpt2-random", "--hypothesis-seed=1", "--diagnose-for=0"]
    findings = run_suite(f"{tmp_path}/boxed.py:factory", chosen)
    assert len(findings.catches) == num_failed, findings.output
    assert "has no trace; not shown to have happened: prefix hit" in findings.output or num_failed


def test_what_tests_do_not_show_is_a_line_for_each_engine() -> None:
    ledgers = Ledger(), Ledger()
    for ledger, other in zip(ledgers, ("prefix hit", "chunk"), strict=True):
        for each in ("preemption", other):
            ledger.note_item("mine has no trace; not shown to have happened", each)
    records = [SimpleNamespace(ledger=each, refused=None) for each in ledgers]
    assert notes([("passed", each) for each in records]) == [  # type: ignore[misc]
        "mine has no trace; not shown to have happened: preemption; prefix hit; chunk"
    ]


def test_what_only_a_trace_shows_is_not_held_without_one(tmp_path: Path) -> None:
    """The tests of P11 that run compare tokens, and count for P1."""
    (tmp_path / "boxed.py").write_text(BOXED.replace("NAME", "'ragged'"))
    chosen = ["-m", "promise(id='P11')", "--model=gpt2-random"]
    findings = run_suite(f"{tmp_path}/boxed.py:factory", chosen)
    rows = re.findall(r"^(P\d+) .*?(\d+|no cap)$", findings.output, re.MULTILINE)
    assert dict(rows) == {"P1": "1", "P11": "no cap"}, findings.output
