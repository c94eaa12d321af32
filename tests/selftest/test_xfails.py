"""`--xfails`: known failures are run, shown and strict; a list excuses nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchproof.errors import UsageError
from batchproof.plugin.xfails import read_known_failures

RunSuite = Callable[..., Any]
List = Callable[..., str]

SUITE = """
import pytest
from batchproof.api import Request
from batchproof.errors import EngineHang, OracleError
from batchproof.promises import Promise
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.workload.workloads import Workload

WORKLOAD = Workload((Request("a", (1, 2), 2),))


@pytest.mark.promise(id="P1")
def test_right(trial):
    trial.check(WORKLOAD)


@pytest.mark.promise(id="P4")
@pytest.mark.parametrize("number", [1, 2])
def test_wrong(trial, number):
    raise broken(Rule.STATED, what=f"planted {number}")


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
RIGHT = f"test_mini.py::test_right[{PAIR}]"
ORACLE = f"test_mini.py::test_oracle[{PAIR}]"
EXPECTED = "right or wrong or hang"


@pytest.fixture
def listed(tmp_path: Path) -> List:
    """Writes the suite and a list of these ids; the flag that names it."""
    (tmp_path / "test_mini.py").write_text(SUITE)

    def write(*ids: str) -> str:
        path = tmp_path / "known.txt"
        path.write_text(
            "# what is open\n\n" + "".join(f"{i}  # slow fix  # http://x/#1\n" for i in ids)
        )
        return f"--xfails={path.name}"

    return write


def test_known_failures_are_shown_and_do_not_fail_the_run(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(*WRONG, HANG), "-k", EXPECTED)
    assert session.exit_status == pytest.ExitCode.OK, session.output
    assert session.cell("P1 parity") == "1 known 2"
    assert session.cell("P10 liveness") == "known 1"
    assert "known n: failed as --xfails says" in session.output
    assert f"XFAIL {HANG} - slow fix (http://x/#1)" in session.output
    assert "1 passed, 2 deselected, 3 xfailed" in session.output


def test_what_is_not_listed_still_fails(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(WRONG[0], HANG), "-k", EXPECTED)
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED
    assert session.cell("P1 parity") == "FAIL 1 known 1"


def test_a_known_failure_that_passes_fails_the_run(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(RIGHT), "-k", "right")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED
    assert "known.txt:3: this known failure passes now, so take the line out" in session.output


def test_known_failures_alone_prove_nothing(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(*WRONG), "-k", "wrong")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED
    assert "NOTHING WAS COMPARED" in session.output


def test_a_failure_of_the_harness_itself_is_never_known(run_suite: RunSuite, listed: List) -> None:
    session = run_suite(listed(ORACLE), "-k", "right or oracle")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED
    assert "no right answer: planted" in session.output
    assert session.cell("P1 parity") == "1"


@pytest.mark.parametrize(
    ("test_id", "words"),
    [
        (f"test_mini.py::test_wong[{PAIR}-1]", f"; did you mean '{WRONG[0]}'?"),
        (f"test_mini.py::test_wrong[{PAIR}-3]", "no test has the id"),
        (f"test_nini.py::test_hang[{PAIR}]", "there is no file 'test_nini.py'"),
        ("test_mini.py::test_self", "is no conformance test, so must pass"),
    ],
)
def test_an_id_of_no_test_is_an_error(
    run_suite: RunSuite, listed: List, test_id: str, words: str
) -> None:
    session = run_suite(listed(test_id), "-k", "right")
    assert session.exit_status == pytest.ExitCode.USAGE_ERROR, session.output
    assert "ERROR: known.txt:3: " in session.output
    assert words in session.output
    assert repr(test_id) in session.output


def test_ids_that_belong_to_another_run_are_left_alone(
    run_suite: RunSuite, listed: List, tmp_path: Path
) -> None:
    (tmp_path / "test_other.py").write_text(SUITE)
    others = ["test_other.py::test_gone", "test_mini.py::test_wrong[ragged-gpt2-random-1]"]
    flag = listed(*others, RIGHT.replace("gpt2-random", "llama-hash"))
    assert run_suite(flag, "test_mini.py", "-k", "right").exit_status == pytest.ExitCode.OK
    narrow = run_suite(listed("test_mini.py::test_gone"), RIGHT)
    assert narrow.exit_status == pytest.ExitCode.OK, narrow.output


def test_an_id_may_hold_spaces(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("a.py::t[my x.py:f?a=b #c-m] #  see issue #7 #\thttp://x#y\n", encoding="utf-8")
    (known,) = read_known_failures(str(path))
    assert known.test_id == "a.py::t[my x.py:f?a=b #c-m]"
    assert known.reason == "see issue #7 (http://x#y)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.py::t\n", "known.txt:1: the line has 1 parts, but must read 'test id # reason # link'"),
        ("\na.py::t # why\n", "known.txt:2: the line has 2 parts"),
        ("a.py::t # why # x # y\n", "known.txt:1: the line has 4 parts"),
        ("a.py::t # why #\n", "known.txt:1: the line has 2 parts"),
        ("a.py::t # w # x\na.py::t # v # y\n", "known.txt:2: 'a.py::t' is listed already, in "),
    ],
)
def test_a_wrong_line_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "known.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_known_failures(str(path))
    assert words in str(caught.value)


def test_a_list_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="--xfails 'nonesuch' cannot be read"):
        read_known_failures("nonesuch")
