"""`.ci/gpu` runs where minutes are expensive, so its mistakes are found here, without a GPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from batchproof.bench.spec_files import select_specs
from batchproof.models.shapes import SHAPES
from batchproof.places import ROOT
from batchproof.run.registry import resolve_engine
from tests.gpu import smoke

# Stands in for Python: notes the arguments of each step, which fails if they hold one of `FAILING`.
STUB = f"""#!{sys.executable}
import json, os, sys, time
if sys.argv[1] == "-c":
    sys.exit(7 if "SystemExit" in sys.argv[2] else 0)
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
try:
    time.sleep(60 if "versions" in sys.argv[2] and "HANGING" in os.environ else 0)
finally:
    print("the end of", sys.argv[2])
sys.exit(any(each in sys.argv for each in os.environ.get("FAILING", "").split()))
"""


class Ran:
    """A run of the command with the stub: what it printed, and the arguments of its steps."""

    def __init__(self, tmp_path: Path) -> None:
        self.stub, self.calls = tmp_path / "python", tmp_path / "calls.jsonl"
        self.out = tmp_path / "out"
        self.stub.write_text(STUB)
        self.stub.chmod(0o755)

    def begin(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHON": self.stub, "OUT": self.out, "CALLS": self.calls} | variables
        command, pipe = [ROOT / ".ci" / "gpu", *arguments], subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)

    def outcomes(self, *arguments: str, **variables: str) -> list[list[str]]:
        """Returns the lines of the summary, word by word, but for the seconds."""
        self.printed = self.begin(*arguments, **variables).communicate(timeout=60)[0]
        lines = self.printed.partition("##### summary\n")[2].splitlines()[:-1]
        return [re.split(r"\s{2,}", line) for line in lines]

    def steps(self) -> list[list[str]]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def values(self, flag: str) -> list[str]:
        """Returns the argument after each `flag` of all steps."""
        pairs = [pair for step in self.steps() for pair in pairwise(step)]
        return [value for name, value in pairs if name == flag]


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    return Ran(tmp_path)


def test_an_unknown_part_is_one_error_that_names_the_choices(ran: Ran) -> None:
    command = ran.begin("correctness", "--dry")
    words = "error: part 'correctness' is unknown; choose from correct, figures, or --dry\n"
    assert (command.communicate()[1], command.returncode) == (words, 2)
    assert not ran.out.exists()


@pytest.mark.parametrize("more", [[], ["--dry"]], ids=["on a GPU", "dry"])
def test_what_the_steps_name_is_there_and_each_part_ends_in_time(ran: Ran, more: list[str]) -> None:
    outcomes = ran.outcomes(*more)
    assert {each[1] for each in outcomes} == {"ok"}
    assert len(outcomes) == len(ran.steps()) == 11
    assert all(find_spec(name) for name in ran.values("-m"))
    assert all(name in SHAPES for name in ran.values("--shape"))
    assert all(resolve_engine(name) for name in ran.values("--engine"))
    assert select_specs(ran.values("--workload"), on_cpu=False)
    # What is left over is passed on, so that the last step of a part may use all of it. There is
    # room for the own time of each.
    limits_s = list(map(int, re.findall(r"begins, at most (\d+) s", ran.printed)))
    assert max(limits_s) <= 540
    written = (ROOT / ".ci" / "gpu").read_text()
    for part in ("correct", "figures"):
        steps = written.partition(f"\n{part}() {{")[2].partition("\n}")[0]
        own_s = re.findall(r"(?:step|conformance|rows) (?:'.*?'|\S+) (\d+) ", steps)
        assert len(own_s) >= 4
        assert sum(map(int, own_s)) <= 540


def test_steps_get_the_first_rung_that_passes(ran: Ran) -> None:
    outcomes = ran.outcomes(FAILING="paged float16")
    states = [each[:2] for each in outcomes]
    assert states[:3] == [["versions", "ok"], ["smoke", "FAILED"], ["smoke", "ok"]]
    assert states[7:9] == [["float16", "FAILED"], ["llama-8b", "ok"]], "the ladder is climbed once"
    engines = {*ran.values("--engine")} - {"ragged", "static", "reference", "transformers-cb"}
    assert engines == {"paged?compile=false", "paged?compile=false&prepare=false"}
    outcomes = ran.outcomes("correct", FAILING="tests.gpu.smoke")
    not_run = [name for name, state, *_ in outcomes if state == "not run"]
    assert not_run == ["float32", "bfloat16", "float16"]


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_cut_off_ends_its_step_and_tells_what_it_has(
    ended_by: signal.Signals, ran: Ran
) -> None:
    run = ran.begin("correct", HANGING="1")
    while not ran.calls.exists():
        time.sleep(0.05)
    run.send_signal(ended_by)
    (first, *others, _) = run.communicate(timeout=30)[0].partition("##### summary\n")[2].splitlines()
    assert first.split()[:2] == ["versions", "STOPPED"]
    assert [each.count("not run") for each in others] == [1] * 6
    assert run.returncode == 1
    assert "the end of tests.gpu.versions" in (ran.out / "correct-log.txt").read_text()


def test_a_step_that_fails_or_hangs_stops_no_other(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = "import time; time.sleep(60)"
    hangs = f"{deaf}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    steps = {"hangs": (1, hangs), "fails": (9, "print('how far it came'); raise SystemExit(3)")}
    steps |= {"is good": (9, "print('1 passed')"), "comes too late": (60, "")}
    words = [f"step {name!r} {limit} -c {json.dumps(code)}" for name, (limit, code) in steps.items()]
    script = "\n".join([". .ci/steps", "grace_s=0.2", "part some 10", *words, "summary"])
    given = os.environ | {"out": tmp_path, "python": sys.executable}
    ran = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=given, capture_output=True, text=True, check=False
    )
    lines = [re.split(r"\s{2,}", line) for line in ran.stdout.splitlines()[-4:]]
    assert [(name, state, finding) for name, state, _, finding in lines] == [
        ("hangs", "STOPPED", ""),
        ("fails", "FAILED", "how far it came"),
        ("is good", "ok", "1 passed"),
        ("comes too late", "no time left", ""),
    ]
    assert ran.returncode == 1
    assert (tmp_path / "some-log.txt").read_text().endswith(ran.stdout[ran.stdout.index("#####", 9) :])


def test_an_engine_that_has_given_up_an_option_fails_its_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(notes=("its layers are not compiled: there is no compiler",))
    spec = SimpleNamespace(factory=lambda *_: slow)
    monkeypatch.setattr(smoke, "resolve_engine", lambda *_: spec)
    with pytest.raises(RuntimeError, match="without some of its options: its layers are not compiled"):
        smoke._build_s("paged", SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
