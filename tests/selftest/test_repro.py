"""`--repro`: what it writes shows the failure again, and falls silent once the engine is honest."""

from __future__ import annotations

import ast
import builtins
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from batchproof.api import (
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    RowRecord,
)
from batchproof.campaign.suite_run import run_suite
from batchproof.cases.files import load_cases
from batchproof.cases.runner import run_case
from batchproof.checks.verdict import ConformanceFailure, Run, Scene
from batchproof.models.catalogue import load_model
from batchproof.promises import Promise
from batchproof.repro import literals
from batchproof.repro.checks import LOOKS
from batchproof.repro.engines import engine_text
from batchproof.repro.failed import Failed
from batchproof.repro.models import model_text, reload
from batchproof.repro.script import script_text
from batchproof.repro.write import write
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Laboratory, Trial
from batchproof.workload.workloads import Workload

ROOT = Path(__file__).parent.parent.parent
MODEL = "gpt2-random"
HONEST = "batchproof_engines.ragged.engine:ragged"
TIME_LIMIT_S = 2

# Fault -> the test that finds it, and whether a case can express what it finds.
FAULTS = {
    "mask_ignores_sequence": ("rewriting_the_neighbours", True),  # two runs compared
    "last_prompt_token_fed_twice": ("generated_workloads", True),
    "kv_cache_in_bfloat16": ("generated_workloads", True),  # right tokens, wrong logits
    "cap_off_by_one": ("exactly_its_own_cap", True),
    "prompt_cut_to_the_context": ("fails_alone", True),
    "batch_barrier": ("filled_at_once", True),
    "last_block_never_freed": ("blocks_add_up", True),
    "first_token_streamed_twice": ("events_add_up", True),
    "abort_of_a_finished_request_frees_again": ("cancelled_at_any_step", True),
    "abort_of_a_waiting_request_ignored": ("a_waiting_request", True),
    "building_seeds_the_global_generator": ("model-is-left-as-it-was", True),
    "future_key_visible": ("moves_exactly_the_queries", True),
}


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory(torch.device("cpu"), torch.float32, TIME_LIMIT_S)


@pytest.fixture
def _undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script thinks that its process is its own."""
    handler = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(os, "_exit", sys.exit)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def find(fault: str, test: str, directory: Path) -> Path:
    """The script that the suite run has left."""
    arguments = ["-x", "-k", test, f"--model={MODEL}", f"--engine-time-limit={TIME_LIMIT_S}"]
    arguments += ["--hypothesis-seed=0", f"--repro={directory}"]
    findings = run_suite(f"fault:{fault}", arguments)
    assert findings.catches, findings.output
    told, _, path = findings.catches[0].report.splitlines()[-1].partition(": ")
    assert told == "repro", findings.catches[0].report
    return Path(path)


def play(script: Path, *arguments: str) -> int:
    sys.argv = [str(script), *arguments]
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert isinstance(end.value.code, int)
    return end.value.code


def fails(lab: Laboratory, directory: Path, engine: str) -> bool:
    (case,) = load_cases(directory)
    spec, oracle = resolve_engine(engine), lab.oracle(MODEL)
    trial = Trial(lab, spec, oracle, lab.capabilities(spec, oracle.subject), case.promise)
    try:
        run_case(trial, case)
    except ConformanceFailure:
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("_undisturbed")
def test_a_failure_is_shown_again_by_its_script_and_its_case(
    fault: str, lab: Laboratory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test, has_case = FAULTS[fault]
    script = find(fault, test, tmp_path)
    assert play(script) == 1
    assert "\nREPRODUCED: " in capsys.readouterr().out
    assert play(script, HONEST) == 0
    assert "\nnot reproduced: " in capsys.readouterr().out
    assert fails(lab, tmp_path, f"fault:{fault}") == has_case, script.with_suffix(".yaml").read_text()
    assert not fails(lab, tmp_path, "ragged")


@pytest.mark.usefixtures("_undisturbed")
def test_a_hang_is_shown_again_from_the_command_line(tmp_path: Path) -> None:
    script = find("oversized_request_blocks_the_queue", "larger_than_the_pool", tmp_path / "kept")
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("REPRODUCED: ")
    assert play(script, HONEST) == 0


LIAR = """
from batchproof_engines.paged import paged


class Engine:
    def __init__(self, model, config):
        self._honest = paged(model, config)
        self.capabilities = frozenset({"tracing", "logits", "prefix_caching"})
        self.generate, self._size = self._honest.generate, config.block_size

    @property
    def trace(self):
        \"\"\"What was computed of the first block is told as taken over.\"\"\"
        return [replace(each, rows=tuple(map(self._told, each.rows))) for each in self._honest.trace]

    def _told(self, row):
        if row.context_len or row.query_len <= self._size:
            return row
        return replace(row, context_len=self._size, query_len=row.query_len - self._size)
"""


@pytest.mark.usefixtures("_undisturbed")
def test_a_prefix_that_nobody_computed_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was computed is a matter of all calls, not of the last alone."""
    liar = tmp_path / "liar.py"
    liar.write_text(f"from dataclasses import replace\n{LIAR}", encoding="utf-8")
    arguments = ["-x", "-k", "share_prefixes", f"--model={MODEL}", "--hypothesis-seed=0"]
    findings = run_suite(f"{liar}:Engine", [*arguments, f"--repro={tmp_path / 'kept'}"])
    assert len(findings.catches) == 1, findings.output
    (catch,) = findings.catches
    assert "P7 positions is broken" in catch.report
    script = Path(catch.report.splitlines()[-1].partition(": ")[2])
    assert play(script) == 1
    assert "nobody has computed" in capsys.readouterr().out
    assert play(script, "batchproof_engines.paged:paged") == 0


def test_a_script_imports_the_engine_and_the_contract_only(tmp_path: Path) -> None:
    script = find("cap_off_by_one", "exactly_its_own_cap", tmp_path)
    again = find("cap_off_by_one", "exactly_its_own_cap", tmp_path)
    assert again.stem == f"{script.stem}-2", "nothing is written over"
    modules = {
        node.module.partition(".")[0] if node.module != "batchproof.api" else node.module
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    allowed = {
        *sys.stdlib_module_names,
        "torch",
        "transformers",
        "batchproof.api",
        "batchproof_engines",
    }
    assert modules <= allowed
    assert len(script.read_text().splitlines()) < 170


@pytest.mark.parametrize("name", ["gpt2-hash", "llama-random"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_comes_back_bit_for_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    subject = load_model(name, torch.device("cpu"), dtype)
    assert model_text(subject, tmp_path) == model_text(subject, tmp_path), "saved once"
    (saved,) = (tmp_path / "models").iterdir()
    again = reload(saved, subject.model)
    tokens = torch.arange(1, 40)[None]
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, subject.model(tokens).logits)
    assert again.config._attn_implementation == subject.model.config._attn_implementation


FACTS = {
    "refused": {"words": [("0", "zero"), ("cap",)]},
    "happened": {"what": "slot that was used again"},
    "max-steps": {"most": 3},
    "mask": {"rows": [RowRecord("r0", 0, 3, True)], "window": None},
    "moves": {"bound": 0.1},
    "world": {"thing": "numpy RNG"},
}


def failed(lab: Laboratory, rule: str) -> Failed:
    """Of a made-up failure of an honest engine that was stepped."""
    spec, oracle = resolve_engine("ragged"), lab.oracle(MODEL)
    requests = (Request("r0", (3, 1, 4), 3), Request("r1", (1, 5), 4))
    run = Run(0, Workload(requests, EngineConfig(), (0, 1), (("r1", 3),)))
    trial = Trial(lab, spec, oracle, lab.capabilities(spec, oracle.subject), Promise.P1)
    error = ConformanceFailure(Promise.P1, 'said "so"', request_id="r0")
    return Failed(error.found_by(rule, **FACTS.get(rule, {})), Scene((run,), (run,)), trial, "t", "t")


@pytest.mark.parametrize("rule", LOOKS)
def test_every_script_defines_what_it_uses(rule: str, lab: Laboratory, tmp_path: Path) -> None:
    tree = ast.parse(script_text(failed(lab, rule), tmp_path))
    known = {*dir(builtins), "__file__"}
    used = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                known.add(name)
            case ast.ExceptHandler(name=str(name)):
                known.add(name)
            case ast.Import(names) | ast.ImportFrom(names=names):
                known |= {(each.asname or each.name).partition(".")[0] for each in names}
    assert used <= known


@pytest.mark.usefixtures("_undisturbed")
def test_what_no_script_can_tell_is_said(
    lab: Laboratory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(write(failed(lab, "near-ties"), tmp_path)) == 2
    assert "CANNOT TELL" in capsys.readouterr().out


def test_engines_are_named_as_a_script_needs_them(tmp_path: Path) -> None:
    assert engine_text("static").imports == "from batchproof_engines.static import static"
    assert engine_text("fault:cap_off_by_one").expression == 'FAULTS["cap_off_by_one"].factory'
    assert engine_text("pkg.mod:make?depth=2&kind=a").expression == "partial(make, depth=2, kind='a')"
    assert engine_text("cmd:./mine 'a:b?c'").expression == """command_line("./mine 'a:b?c'")"""
    path = tmp_path / "mine.py"
    path.write_text("def factory(model, config):\n    return 7\n", encoding="utf-8")
    text = engine_text(f"{path}:factory")
    scope: dict[str, object] = {}
    exec(f"import importlib.util, sys\nfrom pathlib import Path\n{text.functions}", scope)
    assert eval(f"{text.expression}(None, None)", scope) == 7


@pytest.mark.parametrize(
    "name", ["r0", "", "'quoted'", 'dou"ble', "back\\slash", "line\nbreak", "ü\ud800"]
)
def test_literals_are_read_back_as_they_were(name: str) -> None:
    scope = {"Request": Request, "Completion": Completion, "FinishReason": FinishReason}
    for request in Request(name, (7,) * 60, 3), Request(name, tuple(range(50)), -1, frozenset({2, 1})):
        assert eval(literals.request(request, 4), scope) == request
    completion = Completion(name, (1,), FinishReason.LENGTH)
    assert eval(literals.completion(completion), scope) == completion
