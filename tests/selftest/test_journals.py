"""Journals of campaigns: interruptions and killed processes change nothing in a result."""

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from batchproof.errors import UsageError
from batchproof_lab.campaign import CAMPAIGN, Line
from tests.selftest.squares import QUESTION, killed_at_first, squares


def lines(folder: Path) -> list[Line]:
    (path,) = (folder / "journals").iterdir()
    return CAMPAIGN.read(path)[1]


def test_a_killed_process_loses_no_outcome_and_counts_none_twice(tmp_path: Path) -> None:
    """Its worker ends as well, when it finds that nobody listens."""
    code = "from pathlib import Path; from tests.selftest.squares import squares; squares(Path())"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    folder = tmp_path / "journals"
    while not folder.exists() or sum(each.read_bytes().count(b"\n") for each in folder.iterdir()) < 8:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {line.key for line in lines(tmp_path) if line.outcome is not None}
    assert 6 <= len(done) < 50
    (path,) = folder.iterdir()
    with path.open("ab") as file:
        file.write(b'{"key": "7", "outc')  # what a full disk leaves
    found = squares(tmp_path)
    assert found.outcomes == {str(number): number * number for number in range(50)}
    written = Counter(line.key for line in lines(tmp_path) if line.outcome is not None)
    assert set(written.values()) == {1}
    assert (len(found.sittings), {*found.sitting_of.values()}) == (2, {0, 1})


def test_a_task_whose_worker_was_killed_is_lost_until_the_same_command_does_it(tmp_path: Path) -> None:
    for outcomes in ({"1": 1, "2": -1, "3": 3}, {"1": 1, "2": 2, "3": 3}):
        assert squares(tmp_path, (1, 2, 3), killed_at_first).outcomes == outcomes


def test_one_process_writes_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with (
        closing(CAMPAIGN.append_to(path, QUESTION)),
        pytest.raises(UsageError, match="is being written by another process"),
    ):
        CAMPAIGN.append_to(path, QUESTION)
