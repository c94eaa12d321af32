"""Expected failures are run, shown and strict; a list excuses nothing else."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from batchproof.errors import UsageError
from batchproof.plugin.xfails import read_known_failures
from tests.selftest.conftest import HEAD, RIGHT, RunSuite

List = Callable[..., str]

SUITE = f"""{HEAD}{RIGHT}
from batchproof.errors import EngineHang, OracleError

@pytest.mark.promise(id="P4")
@pytest.mark.parametrize("number", [1, 2])
def test_wrong(trial, number):
    raise broken(Rule.STATED, what=f"planted {{number}}")


@pytest.mark.promise(id="P1")
def test_hang(trial):
    raise EngineHang("planted hang")


@pytest.mark.promise(id="P1")
def test_oracle(trial):
    with trial.reporting(WORKLOAD):
        raise OracleError("no right answer: planted")


def test_self():
    raise AssertionError
"""
PAIR = "static-gpt2-random"
WRONG = [f"test_mini.py::test_wrong[{PAIR}-{number}]" for number in (1, 2)]
HANG = f"test_mini.py::test_hang[{PAIR}]"
PASSES = f"test_mini.py::test_right[{PAIR}]"
ORACLE = f"test_mini.py::test_oracle[{PAIR}]"
REQUIREMENTS = [f"test_mini::test_wrong[gpt2-random-{number}]" for number in (1, 2)]
ENTRY = """
[[expected_failures]]
test = "{}"
reason = "slow fix"
link = "http://x/#1"
"""
EXPECTED = "right or wrong or hang"


@pytest.fixture
def listed(tmp_path: Path) -> List:
    """Writes the suite and a list of these ids; the flag that names it."""
    (tmp_path / "test_mini.py").write_text(SUITE)

    def write(*ids: str, head: str = "") -> str:
        path = tmp_path / "known.toml"
        path.write_text(f"{head}\n" + "".join(map(ENTRY.format, ids)))
        return f"--xfails={path.name}"

    return write


def test_known_failures_are_shown_and_do_not_fail_the_run(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(*WRONG, HANG), "-k", EXPECTED)
    assert session.exit_status == pytest.ExitCode.OK, session.output
    assert session.cell("P1 parity") == "1 known 2"
    assert session.cell("P10 liveness") == "known 1"
    assert "known n: failed as expected" in session.output
    assert f"XFAIL {HANG} - slow fix (http://x/#1)" in session.output
    assert "1 passed, 2 deselected, 3 xfailed" in session.output


def test_what_is_not_listed_what_passes_and_the_harness_itself_still_fail(
    run_suite: RunSuite, listed: List
) -> None:
    session = run_suite(listed(WRONG[0], HANG, PASSES, ORACLE), "-k", f"{EXPECTED} or oracle")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED
    assert "3 failed, 1 deselected, 2 xfailed" in session.output
    assert session.cell("P1 parity") == "FAIL 2 known 1"
    assert "known.toml:14: this known failure passes now, so take the entry out" in session.output
    assert "no right answer: planted" in session.output, "it is never known"


def test_each_id_of_no_test_is_an_error(run_suite: RunSuite, listed: List) -> None:
    wrong = {
        f"test_mini.py::test_wong[{PAIR}-1]": f"; did you mean '{WRONG[0]}'?",
        f"test_nini.py::test_hang[{PAIR}]": "there is no file or module 'test_nini.py'",
        "test_mini::test_wong[gpt2-random-1]": f"; did you mean '{REQUIREMENTS[0]}'?",
        "test_mini.py::test_self": "is no conformance test, so must pass",
        "test_mini::test_wrong[any-1]": f"; did you mean '{REQUIREMENTS[0]}'?",
    }
    session = run_suite(listed(*wrong), "-k", "right")
    session.require_usage_error("ERROR: known.toml:4: ")
    for line, (test_id, words) in zip(range(4, 99, 5), wrong.items(), strict=False):
        (said,) = (each for each in session.output.splitlines() if f"known.toml:{line}: " in each)
        assert words in said
        assert repr(test_id) in said


def test_ids_that_belong_to_another_run_are_left_alone(run_suite: RunSuite, listed: List) -> None:
    Path("test_other.py").write_text(SUITE)
    others = ["test_other.py::test_gone", "test_mini.py::test_wrong[ragged-gpt2-random-1]"]
    others += ["test_order::test_gone[gpt2-hash]", "test_mini::test_wrong[gpt2-hash-1]"]
    flag = listed(*others, PASSES.replace("gpt2-random", "llama-hash"))
    assert run_suite(flag, "test_mini.py", "-k", "right").exit_status == pytest.ExitCode.OK
    narrow = run_suite(listed("test_mini.py::test_gone"), PASSES)
    assert narrow.exit_status == pytest.ExitCode.OK, narrow.output


def test_a_list_is_about_its_engines(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(*REQUIREMENTS, head='engine = ["ragged"]'), "-k", "right or wrong")
    assert session.cell("P1 parity") == "FAIL 2", session.output
    session = run_suite(listed(*REQUIREMENTS), "-k", "right or wrong")
    assert (session.exit_status, session.cell("P1 parity")) == (0, "1 known 2"), session.output


X = ENTRY.format("a::t")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (X.replace("link", "lnk"), ":5: an expected failure has no key 'lnk'; do you mean link?"),
        (X.replace("link =", "# "), ":2: an expected failure lacks the key 'link'"),
        (
            X.replace("link =", "# ").replace("reason =", "# "),
            ":2: an expected failure lacks the keys 'reason', 'link'",
        ),
        (X + X, ":8: 'a::t' is listed already, in "),
        (X + 'device = "cpu"', ":6: device is a key of the file: it must stand above the first [["),
    ],
)
def test_a_wrong_entry_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(f"known.toml{words}")):
        read_known_failures(str(path))
