"""A session with workers: what they find reaches the journal, the table and the list of known failures,
and a worker that dies or hangs costs its own test alone.

One session shows all of it, for each start of a worker takes longer than the rest; the last of them
finds no test left to run.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from batchproof.plugin.recorder import exit_status
from batchproof.records.journal import entries
from tests.selftest.conftest import HEAD, LACKING, RunSuite

ENGINES = """
import ctypes, os, signal
from batchproof_engines.static import StaticEngine

class Deaf(StaticEngine):
    def generate(self, requests):
        if any(request.request_id == "bad" for request in requests):
            self.misbehave()
        return super().generate(requests)

    def misbehave(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); ctypes.PyDLL(None).sleep(600)

class Aborting(StaticEngine):
    def __init__(self, model, config):
        if config.max_num_seqs == 3:
            os.abort()
        super().__init__(model, config)
"""
SUITE = f"""{HEAD}{LACKING}
from batchproof.api import EngineConfig

@pytest.mark.promise(id="P4")
def test_wrong(trial):
    raise broken(Rule.STATED, what="planted")


@pytest.mark.promise(id="P1")
@pytest.mark.promise(id="P4")
@pytest.mark.parametrize("name", ["a", "b", "bad"])
def test_it(trial, name):
    config = EngineConfig(max_num_seqs=3) if name == "bad" else EngineConfig()
    trial.check(Workload((Request(name, (1, 2), 2),), config))
"""
DEAF, ABORTING = "mine.py:Deaf", "mine.py:Aborting"


def test_what_workers_find_is_what_is_kept_and_shown(run_suite: RunSuite, tmp_path: Path) -> None:
    """One engine holds the interpreter for ever in a call, another aborts its process when it is built:
    each costs one worker, and each test has its entry."""
    (tmp_path / "known.toml").write_text(
        "".join(
            f'[[expected_failures]]\ntest = "test_mini.py::test_wrong[{engine}-gpt2-random]"\n'
            'reason = "slow fix"\nlink = "http://x/#1"\n'
            for engine in (DEAF, ABORTING, "static")
        )
    )
    journal = tmp_path / "journal.jsonl"
    files = [f"--journal={journal}", "--xfails=known.toml", "--table=table.json"]
    engines = ("--engine=static", f"--engine={DEAF}", f"--engine={ABORTING}")
    options = (*engines, *files, "--isolate", "--engine-time-limit=2")
    session = run_suite(*options, test_mini=SUITE, mine=ENGINES)
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    kept = list(entries(journal))
    assert len({each.test for each in kept}) == len(kept) == 15, "once, though other workers took over"
    failed = {each.test.partition("::")[2]: each for each in kept if each.outcome == "failed"}
    assert failed.keys() == {f"test_it[{engine}-gpt2-random-bad]" for engine in (DEAF, ABORTING)}
    assert all(each.record and each.record.failure for each in failed.values())
    assert [each.outcome for each in kept].count("passed") == 7
    table = json.loads((tmp_path / "table.json").read_text())
    cells = {
        engine: {promise: cell["text"] for promise, cell in table["cells"][engine].items()}
        for engine in (DEAF, ABORTING, "static")
    }
    assert cells == {
        DEAF: {"P1": "2 known 1", "P4": "2", "P10": "FAIL 1", "P14": "no cap"},
        ABORTING: {"P1": "2 known 1", "P4": "2", "P10": "FAIL 1", "P14": "no cap"},
        "static": {"P1": "3 known 1", "P4": "3", "P14": "no cap"},
    }
    assert session.cell("P1 parity").startswith(cells["static"]["P1"])
    assert (table["exit_status"], table["is_complete"]) == (1, True)
    assert "static: 3 workloads, 3 answers" in session.output
    assert "generate did not return within 2 s, nor when it was interrupted" in session.output
    assert "mine.py:12 in misbehave" in session.output
    assert "P10 liveness is broken: the process was ended by SIGABRT in building" in session.output


@pytest.mark.parametrize(
    ("ended", "how", "status"),
    [
        # xdist ends it as if it were interrupted; one whose tests cannot be collected is.
        (2, {"num_failed": 1, "is_cut_short": True}, 1),
        (2, {"is_cut_short": True}, 2),
        (2, {"num_failed": 1, "signal_status": 143}, 143),
        (5, {"has_problem": True}, 4),
        (0, {}, 0),
    ],
)
def test_the_exit_status_says_how_a_session_ended(ended: int, how: Any, status: int) -> None:
    assert exit_status(ended, [], **how) == status
