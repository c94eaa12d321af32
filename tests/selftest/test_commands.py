"""Wrong input to a command is one sentence on stderr that names value and rule, and exit code 2."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.cli import pytest_process

DTYPES = "--axis=--dtype=float32,bfloat16"
WRONG_INPUT = [
    ("", "COMMAND"),
    ("lab faulty", "'faulty' is no command; do you mean faults?"),
    ("tets mine.py:Engine", "'tets' is no command; do you mean test?"),
    ("test paged -n many", "-n is 'many', but must be a whole number, 'auto' or 'logical'"),
    ("judge static --model=x", "--model is an option of pytest: --pytest=--model=x"),
    ("judge static --outptu=x", "--outptu is no option; do you mean --output or --pytest?"),
    ("checkpoint gpt2-hash out -k parity", "arguments: -k parity (see `batchproof checkpoint --help`)"),
    ("checkpoint gpt2-hash out --dtyp float16", "--dtyp"),  # no abbreviation
    ("test -n 2 -q mine.py:Engine", "no ENGINE is given: name one before all options"),
    ("bench --released static", "--released is instead of engines, but 'static' is named as well"),
    ("bench static --released --laps=1", "but 'static' is named as well"),
    ("triage http://127.0.0.1:9 --pack no.pack", "there is no probe pack 'no.pack'"),
    ("judge static static", "'static' is named twice"),
    ("judge releases static 1 2", "'static' has no releases here"),
    ("judge matrix static", "'static' declares no axes: give some"),
    ("judge matrix static --axis=polcy=a,b", "unknown option 'polcy'"),
    ("judge static --pytest '", "cannot be split into arguments: No closing quotation"),
    (
        "judge static --pytest=--engine=ragged",
        "--pytest holds --engine=ragged, but the command names the engine",
    ),
    ("invariance paggd --model llama-random", "--engine 'paggd' is no engine"),
    ("lab faults mask_ignores_sequences", "is no planted fault; do you mean mask_ignores_sequence"),
    ("lab faults --output full/file/x", "--output 'full/file/x' cannot be written"),
    ("judge matrix static --axis=--dtype=float32,float31", "'float31' is unknown"),
    ("judge matrix static --axis=--model=llama-hash,nope", "'nope' is unknown"),
    ("judge matrix static --axis==1,2", "'=1,2' must begin with a name"),
    (
        f"judge matrix static {DTYPES} --pytest=--dtype=float16",
        "set by --axis '--dtype' and by --pytest",
    ),
    ("dropin tgi new", "'tgi' is unknown; choose one of "),
    ("install mlx==", "VERSION is empty; write mlx==VERSION or mlx"),
    ("checkpoint gpt2-hash full", "holds something already, but must be empty"),
]


@pytest.mark.parametrize(("line", "words"), WRONG_INPUT, ids=ascii)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    line: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    arguments = line.split() if line.count("'") == 1 else shlex.split(line)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert {each.name for each in tmp_path.rglob("*")} == {"full", "file"}


def test_an_interrupt_that_this_process_alone_was_sent_ends_pytest_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        is_waited_for = False

        def wait(self, timeout: float | None = None) -> int:
            if not self.is_waited_for:
                self.is_waited_for = True
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(pytest_process, "GRACE_S", 0.5)
    script = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        pytest_process._status([sys.executable, "-c", script], os.environ)


@pytest.mark.parametrize(("option", "exit_status"), [("--help", 0), ("-q", 1)])
def test_an_engine_is_not_said_to_end_what_runs_no_test(
    option: str, exit_status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pytest_process, "_status", lambda *_: 0)
    assert pytest_process.run_pytest(tmp_path, ["static", option], []) == exit_status
