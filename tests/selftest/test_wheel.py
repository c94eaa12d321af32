"""One package, installable: what the wheel holds, who is disturbed by it, and the names it brings.

`.github/workflows/ci.yml` builds the wheel and uses it in an empty environment; here is what can be
seen without a build.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchproof import places
from batchproof.__main__ import COMMANDS, OF_VERDICTS, main
from batchproof.cli import pytest_process
from batchproof.places import BENCHMARKS, CASES, ROOT, SUITE
from batchproof.plugin import OPTIONS
from batchproof.records.provenance import ENDED
from batchproof_lab.__main__ import COMMANDS as LAB_COMMANDS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OPTIONS_OF_PYTEST = ["-p", "batchproof.plugin", "-p", "no:cacheprovider", "--import-mode=importlib"]

FOREIGN_CONFTEST = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--device", default="tpu")

@pytest.fixture
def trial(request):
    return request.config.getoption("--device")
"""
FOREIGN_TEST = """
import sys

def objective(trial): ...

def test_of_another_project(trial):
    assert trial == "cpu"
    assert not {"torch", "transformers", "hypothesis", "batchproof.plugin.active"} & set(sys.modules)

def test_a_benchmark(benchmark):
    benchmark(lambda: None)
"""


def test_the_wheel_holds_what_the_installed_package_looks_for() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = ["harness/batchproof", "implementations/batchproof_engines"]
    assert wheel["packages"] == [*packages, "implementations/batchproof_paged"]
    folders = {"curated": CASES, "suite": SUITE, "benchmarks": BENCHMARKS}
    assert wheel["force-include"] == {
        path.relative_to(ROOT).as_posix(): f"batchproof/{name}" for name, path in folders.items()
    }
    for name in folders:  # pytest finds only packages with a module of their own by --pyargs
        assert not (places.PACKAGE / name).exists(), "the wheel would hold two of them"
    assert all((folder / "__init__.py").is_file() for folder in (SUITE, BENCHMARKS))


def test_the_oldest_versions_allowed_are_those_tested() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    oldest = {each.replace(">=", "==") + ".*" for each in PROJECT["project"]["dependencies"]}
    assert oldest == {*re.findall(r"[\w-]+==[\d.]+\.\*", workflow)}


def test_entry_points_commands_and_options_resolve(pytestconfig: pytest.Config) -> None:
    assert PROJECT["project"]["scripts"] == {"batchproof": f"{main.__module__}:{main.__name__}"}
    # A plugin is registered by the name of its entry point; a conftest.py registers it by its module's.
    (plugin,) = PROJECT["project"]["entry-points"]["pytest11"].items()
    assert plugin == ("batchproof.plugin", "batchproof.plugin")
    every = [*COMMANDS.values(), *OF_VERDICTS.values(), *LAB_COMMANDS.values()]
    assert all(find_spec(command.module) for command in every)
    groups = [group for group in pytestconfig._parser._groups if group.name.startswith("batchproof")]
    assert {name for group in groups for option in group.options for name in option.names()} == OPTIONS


def test_what_a_controller_of_workers_needs_imports_no_torch() -> None:
    """Its workers would wait for it."""
    heavy = "{'torch', 'transformers', 'numpy', 'hypothesis'}"
    code = f"import sys, batchproof.plugin.active; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes to the folder of another project, which has a `--device` and a `trial` of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\nstrict = true\n")
    (tmp_path / "conftest.py").write_text(FOREIGN_CONFTEST)
    (tmp_path / "test_foreign.py").write_text(FOREIGN_TEST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # benchmarks refuse to run in a worker


@pytest.mark.usefixtures("foreign")
def test_a_run_that_has_nothing_to_do_with_it_is_left_alone() -> None:
    """In a process of its own, which has imported nothing yet."""
    command = [sys.executable, "-m", "pytest", *OPTIONS_OF_PYTEST, "--device=cpu"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
    assert "batchproof: " not in ran.stdout.lower()


@pytest.mark.usefixtures("foreign")
def test_a_clash_with_another_projects_options_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = pytest.main([*OPTIONS_OF_PYTEST, "--assert=plain", "-p", "no:xdist", "--engine=static"])
    said = capsys.readouterr()
    assert status == pytest.ExitCode.USAGE_ERROR, said.out + said.err
    assert "clash with those of this project's conftest.py" in said.err
    assert "use `batchproof test`" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("status", "has_ended", "exit_code"),
    [
        (0, True, 0),
        (0, False, 1),  # an engine that ends the process with 0 passes nothing
        *((status, True, code) for status, code in ((1, 1), (2, 2), (4, 2), (5, 2), (-11, 139))),
    ],
)
def test_a_verdict_does_not_depend_on_the_folder(
    status: int, has_ended: bool, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def started(command: list[str], env: Mapping[str, str]) -> AbstractContextManager[SimpleNamespace]:
        commands.append(command)
        if has_ended:
            Path(env[ENDED]).touch()
        return nullcontext(SimpleNamespace(wait=lambda: status))

    monkeypatch.setattr(pytest_process.subprocess, "Popen", started)
    monkeypatch.chdir(tmp_path)
    assert main(["test", "mine.py:Engine", "paged", "-k", "parity"]) == exit_code
    (command,) = commands
    assert str(SUITE) in command
    assert f"--confcutdir={SUITE}" in command, "no conftest.py of the current project is read"
    assert command[-4:] == ["--engine=mine.py:Engine", "--engine=paged", "-k", "parity"]
