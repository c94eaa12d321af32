"""Journals of campaigns: shards, interruptions and killed processes change nothing in a result."""

from __future__ import annotations

import json
import operator
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchproof.__main__ import main
from batchproof.errors import UsageError
from batchproof.records.campaign import CAMPAIGN, Line, Question, Sitting
from batchproof.records.honest import HonestCounts
from batchproof.records.provenance import Machine, Provenance
from batchproof.run.registry import faults
from batchproof_lab.attempts import Attempt, Kill
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.found import Found
from batchproof_lab.honest_tasks import HonestOutcome, HonestTask
from batchproof_lab.model_sweep.toy_check import ToyResult, ToyTask, ToyVerdict
from batchproof_lab.work import pool_of
from tests.selftest.squares import QUESTION, killed_at_first, squares

SITTING = Sitting("id", "1/1", Provenance(Machine("one", 1), {"python": "3"}))


def judged(task: HonestTask) -> HonestOutcome:
    return HonestOutcome(task, HonestCounts(1, 20 + task.seed % 50, 3, 2, 1))


def killed(attempt: Attempt, **_: object) -> Kill:
    fault = faults()[attempt.fault]
    function = next(iter(conformance_functions()))
    caught = len(attempt.models) > 1 or hash(attempt.models) % 2 == 0
    return Kill(function, fault.promise.id, fault.cause.name, 3, 0.5, (function,)) if caught else Kill()


def served(task: ToyTask) -> ToyResult:
    return ToyResult(ToyVerdict.SERVED, layers=str(task.toy))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that take no time."""
    campaign = "batchproof_lab"
    monkeypatch.setattr(f"{campaign}.honest_command.judge_honest", judged)
    monkeypatch.setattr(f"{campaign}.faults_command.make_attempt", killed)
    monkeypatch.setattr(f"{campaign}.model_sweep.sweep_command._judge", served)
    monkeypatch.setattr(f"{campaign}.model_sweep.sweep_command._try", lambda _: None)


@pytest.mark.usefixtures("one_process", "stand_ins")
@pytest.mark.parametrize(
    "command",
    [
        ["honest", "--workloads=2700", "--seed=5"],
        ["faults", *list(faults())[:6], "--seeds=1,2"],
        ["models", "llama", "gpt2", "bloom", "phi3", "mamba"],
    ],
    ids=operator.itemgetter(0),
)
def test_four_shards_are_one_run(command: list[str], tmp_path: Path) -> None:
    def run(*arguments: str) -> dict[str, Any]:
        main(list(arguments))
        (path,) = (each for each in tmp_path.glob("*.json"))
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return record

    options = [f"--output={tmp_path}", "--jobs=1"]
    whole = run(*command, *options)
    journals = tmp_path / "journals"
    (journal,) = journals.iterdir()
    journal.rename(tmp_path / "whole.jsonl")
    for index in (4, 2, 1, 3):
        main([*command, *options, f"--shard={index}/4"])
        assert not [*tmp_path.glob("*.json")], "a shard has no result of its own"
    parts = [str(each) for each in journals.iterdir()]
    assert len(parts) == 4
    merged = run("merge", options[0], *parts)
    read_by_the_command = run(*command, *options)
    twice = run("merge", options[0], *parts, str(tmp_path / "whole.jsonl"))
    for record in (whole, merged, read_by_the_command, twice):
        record["made"] = None
        if "runs" in record:
            assert {run["is_complete"] for run in record.pop("runs")} == {True}
    assert whole == merged == read_by_the_command == twice


def lines(folder: Path) -> list[Line]:
    (path,) = (folder / "journals").iterdir()
    return CAMPAIGN.read(path)[1]


SCRIPT = """
import sys
from pathlib import Path
from tests.selftest.squares import squares
if __name__ == "__main__":
    squares(Path(sys.argv[1]))
"""


def test_a_killed_process_loses_no_outcome_and_counts_none_twice(tmp_path: Path) -> None:
    """Its worker ends as well, when it finds that nobody listens."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, script, tmp_path], stderr=subprocess.DEVNULL)
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
    assert len({each.id for each in found.sittings.values()}) == 2


def test_a_task_whose_worker_was_killed_is_done_by_another_once(tmp_path: Path) -> None:
    tasks = [(str(tmp_path / name), number) for number, name in enumerate(("", "", "", "nowhere"), 1)]
    found = squares(tmp_path, tasks, killed_at_first)
    assert [found.outcomes[str(task)] for task in tasks] == [1, 2, 3, -1]
    losses = [line.key for line in lines(tmp_path) if line.killed]
    assert sorted(losses) == [str(tasks[1]), str(tasks[3]), str(tasks[3])]


@pytest.mark.parametrize(
    ("question", "outcomes", "message"),
    [
        (Question("squares", {"numbers": (1, 2)}, "def"), [1], "of another question or of other code"),
        (Question("squares", {"numbers": (1, 3)}, "abc"), [1], "of another question or of other code"),
        (QUESTION, [1, 2], "has another outcome of task 'one'"),
        (QUESTION, ["1"], "is damaged in task 'one': it is '1', not a whole number"),
    ],
)
def test_what_cannot_be_added_is_refused(
    question: Question, outcomes: list[object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    with CAMPAIGN.append_to(path, question) as journal:
        journal.append(Line(sitting=SITTING))
        for outcome in outcomes:
            journal.append(Line("one", outcome))
    with pytest.raises(UsageError, match=message):
        Found(int).read([path], QUESTION)


def test_one_process_writes_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with (
        CAMPAIGN.append_to(path, QUESTION),
        pytest.raises(UsageError, match="is being written by another process"),
    ):
        CAMPAIGN.append_to(path, QUESTION)


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "batchproof_lab.ray_pool", raising=False)
    yield
    sys.modules.pop("batchproof_lab.ray_pool", None)


@pytest.mark.usefixtures("no_ray")
def test_without_ray_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--runner ray needs Ray: `pip install 'batchproof\[ray\]'`"):
        pool_of("ray", 1, 60.0)


class RayError(Exception):
    pass


def stand_in_of_ray() -> ModuleType:
    """Actors in this process; each has a worker process of its own, as real ones have."""
    lost = []

    def remote(**_: object) -> Any:
        return lambda kind: SimpleNamespace(remote=lambda *given: _actor(kind(*given)))

    def _actor(host: Any) -> Any:
        def run(call: bytes) -> Any:
            lost.append(len(lost))
            return (host, call, lost[-1])

        return SimpleNamespace(host=host, run=SimpleNamespace(remote=run))

    def get(ref: Any) -> Any:
        host, call, number = ref
        if number == 1:
            raise RayError("the machine is gone")
        return host.run(call)

    ray: Any = ModuleType("ray")
    ray.remote, ray.get, ray.exceptions = remote, get, SimpleNamespace(RayError=RayError)
    ray.wait = lambda refs: (refs[:1], refs[1:])
    ray.kill = lambda actor: actor.host._pool.__exit__()
    ray.init = lambda *_, **__: None
    ray.shutdown = lambda: None
    return ray  # type: ignore[no-any-return]


@pytest.mark.usefixtures("no_ray")
def test_a_machine_that_ray_loses_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", stand_in_of_ray())
    found = squares(tmp_path, range(6), runner="ray", jobs=2)
    assert found.outcomes == {str(number): number * number for number in range(6)}
    (loss,) = (line for line in lines(tmp_path) if line.killed)
    assert loss.killed == "Ray lost its worker: RayError"
