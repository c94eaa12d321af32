"""The suite proves itself: each planted fault is caught by a test of the promise it breaks.

Quick: one fault of each class, no diagnosis, and first the tests and seeds that `results/faults.json`
names for it. A fault whose code, or whose test, is not the one that the file was made with is hunted
as well, until `batchproof lab faults` makes its row anew. That command hunts all of them, on all models
and several seeds (see `test_campaign.py`).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchproof.findings.causes import Cause
from batchproof.models.embedded import LONG_MODEL
from batchproof.places import ROOT
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import faults
from batchproof_lab.fingerprint import code_of, fingerprint
from batchproof_lab.suite_run import Effort, run_suite
from tests.selftest.conftest import LaboratoryFor

FAULTS = faults()
KILLS = json.loads((ROOT / "results" / "faults.json").read_text())["faults"]
TIME_LIMIT_S = 3.0  # an honest call takes a fraction of a second
MODELS = ("gpt2-random", "mistral-window")  # absolute positions; RoPE and a window; both quick
# Where a class that needs other tests and another model is hunted.
PLACE_OF = {"scale": ["-k", "test_scale", f"--model={LONG_MODEL}"]}


def is_as_in_the_table(name: str) -> bool:
    """Are the fault and the tests that caught it those of its row?"""
    caught_by = {kill["caught_by"] for kill in KILLS[name]["kills"]} if name in KILLS else set()
    return bool(caught_by) and KILLS[name]["code"] == fingerprint(FAULTS[name].component, caught_by)


FIRST_OF_ITS_CLASS = {fault.kind: name for name, fault in reversed(FAULTS.items())}
HUNTED = [
    name
    for name, fault in FAULTS.items()
    if FIRST_OF_ITS_CLASS[fault.kind] == name or not is_as_in_the_table(name)
]


def hunted(name: str) -> Any:
    """A plain run meets those of which something has changed, and a third of the others."""
    return pytest.param(name, marks=[pytest.mark.every(3)] if is_as_in_the_table(name) else [])


@pytest.fixture(scope="module")
def shared(laboratory_for: LaboratoryFor) -> Laboratory:
    return laboratory_for(TIME_LIMIT_S)


@pytest.mark.parametrize("name", [hunted(name) for name in HUNTED])
def test_a_planted_fault_is_caught_by_a_test_of_its_promise(name: str, shared: Laboratory) -> None:
    fault = FAULTS[name]
    models = MODELS if fault.shows_on is None else (fault.shows_on,)
    promise, place = fault.promise.id, PLACE_OF.get(fault.kind, _on(models))
    for seed, where in (*_known_catches(name), (1, ["-m", f"promise(id='{promise}')", *place])):
        options = ["-x", f"--hypothesis-seed={seed}", "--diagnose-for=0"]
        findings = run_suite(f"fault:{name}", [*options, *where], shared, Effort(profile="default"))
        if findings.catches:
            break
    assert findings.catches, f"no test of {promise} caught {name}:\n{findings.output}"
    catch = findings.catches[0]
    assert catch.broken is not None, f"the suite broke instead of reporting: {catch.report}"


def _known_catches(name: str) -> Iterator[tuple[int, list[str]]]:
    """Where the table saw the fault caught: the seed, and the test with its models. What Hypothesis
    draws for a seed also depends on what else the process has imported."""
    row = KILLS.get(name, {"kills": []})
    for kill in row["kills"]:
        yield kill["seed"], [kill["caught_by"], *_on(row["home"])]


def _on(models: Iterable[str]) -> list[str]:
    return [f"--model={model}" for model in models]


def test_each_promise_and_each_cause_of_a_mistake_has_a_fault() -> None:
    assert {fault.promise for fault in FAULTS.values()} == {*Promise}
    # The other three are verdicts of the harness about an answer, or about its own knowledge.
    others = {Cause.DROPPED, Cause.NEAR_TIE, Cause.UNKNOWN}
    assert {fault.cause for fault in FAULTS.values()} == {*Cause} - others
    assert all(fault.summary and fault.thread for fault in FAULTS.values())
    assert {FAULTS[name].kind for name in HUNTED} == {fault.kind for fault in FAULTS.values()}


LIAR = """
LIMIT = 3

def helper():
    return LIMIT

class Liar:
    def lie(self):
        return helper()

class Other:
    pass
"""


@pytest.mark.parametrize(
    ("old", "new", "is_changed"),
    [
        ("return helper()", "return helper() + 1", True),
        ("LIMIT = 3", "LIMIT = 4", True),
        ("class Liar:", 'class Liar:\n    """States another lie."""\n', False),
        ("    pass", "    size = 1", False),
    ],
)
def test_a_change_of_the_code_behind_a_row_is_seen(
    tmp_path: Path, old: str, new: str, is_changed: bool
) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(LIAR)
    after.write_text(LIAR.replace(old, new))
    assert (code_of(before, "Liar") != code_of(after, "Liar")) == is_changed
