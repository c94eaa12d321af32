"""`batchproof judge matrix` and `judge releases`: cells, searches for what decides, and the page."""

import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.__main__ import main
from batchproof.checks import happened
from batchproof.errors import Interrupt, UsageError
from batchproof.judgement import cells, matrix_command, possible
from batchproof.judgement.axes import (
    BESIDE,
    MET,
    Axes,
    Cell,
    axes_of,
    base_of,
    cell_of,
    chosen,
    folder_name,
    proof_of,
)
from batchproof.judgement.cells import CellResult, CellTask, as_unmet
from batchproof.judgement.deciding import (
    Found,
    Search,
    change_between,
    run_searches,
    smallest_difference,
)
from batchproof.judgement.matrix_page import matrix_page
from batchproof.records.matrix import MATRIX, CellRecord, Settings, told_rows
from batchproof.records.verdict import PromiseResult, RequirementOutcome
from batchproof.run.registry import EngineSpec, resolve_engine
from batchproof_engines.adapters.openai import saved_slots, traffic
from batchproof_engines.adapters.released import CLIENT_OPTIONS, libraries
from batchproof_paged.block_manager import OFFLOADED, RESTORED, TRANSFERRED
from batchproof_paged.graphs import REPLAYED

AXES = {
    name: {value: {name: value} for value in ("off", "on", "more")[:n]}
    for name, n in zip("abcd", (2, 2, 3, 2), strict=True)
}
ONE, OTHER = "test_parity::test_it[*]", "test_reuse::test_it[*]"


def test_in_a_matrix_every_two_values_meet_and_the_base_is_in_it() -> None:
    rows = chosen(AXES)
    assert rows[0] == base_of(AXES)
    for names in combinations(AXES, 2):
        met = {tuple(row[name] for name in names) for row in rows}
        assert met == set(product(*(AXES[name] for name in names)))
    some = chosen({"c": AXES["c"]})
    assert some[0] == {"c": "off"}
    assert {each["c"] for each in some} == {*AXES["c"]}


def test_values_stand_beside_others_as_they_say() -> None:
    """Two that exclude each other never meet, one that needs another meets nothing else."""
    parallel = {
        "tp": {"1": {}, "2": {"tp": "2", BESIDE: {"pp": "1"}}},
        "pp": {"1": {}, "2": {"pp": "2", BESIDE: {"tp": "1"}}},
        "ep": {"off": {}, "on": {"ep": "on", BESIDE: {"tp": "2"}}},
    }
    rows = chosen(axes_of(parallel, [], "mine"))
    assert rows[0] == {"tp": "1", "pp": "1", "ep": "off"}
    met = {(each["tp"], each["pp"], each["ep"]) for each in rows}
    assert met >= {("1", "2", "off"), ("2", "1", "on")}
    assert not {pair[:2] for pair in met} & {("2", "2")}
    assert not {pair[::2] for pair in met} & {("1", "on")}
    assert cell_of("mine", parallel, rows[0] | {"tp": "2"}).engine == "mine?tp=2"
    alone = axes_of(parallel, ["ep"], "mine")
    assert [cell_of("mine", alone, each).engine for each in chosen(alone)] == [
        "mine",
        "mine?tp=2&ep=on",
    ]
    with pytest.raises(UsageError, match="'ep': on needs tp=2, but --axis 'tp' has 1, 4"):
        axes_of(parallel, ["ep", "tp=1,4"], "mine")


def test_what_this_machine_or_the_engine_cannot_have_is_told_first() -> None:
    axes = {
        "graphs": {"off": {}, "on": {"graphs": "true", "--device": "cuda:99"}},
        "kept": {"no": {}, "yes": {"kept": "true", BESIDE: {"graphs": "on", "pool": "large"}}},
        "pool": {"small": {}, "large": {BESIDE: {"kept": "yes"}}},
        "ranks": {"2": {"--device": "cuda:99"}},
    }
    left, sentences = possible.available(axes)
    assert left == {"graphs": {"off": {}}, "kept": {"no": {}}, "pool": {"small": {}}}
    assert chosen(left) == [{"graphs": "off", "kept": "no", "pool": "small"}]
    told = [each.partition(":")[0] for each in sentences]
    assert told == ["graphs=on", "kept=yes", "pool=large", "ranks=2"]
    options = ["--device=cpu", "--model=gpt2-random", "--hypothesis-profile=quick"]
    assert not possible.refusal_of("paged?backend=blocks", options)
    assert "backend is 'bogus', but must be" in possible.refusal_of("paged?backend=bogus", options)


def test_a_value_sets_options_of_the_engine_and_of_the_suite() -> None:
    declared = {"kv": {"f32": {}, "q8": {"kv": "q8", "--kv-cache-dtype": "int8"}}}
    axes = axes_of(declared, ["kv", "--model=a-hash,b-hash"], "mine")
    settings = {"kv": "q8", "--model": "b-hash"}
    cell = cell_of("mine?x=1", axes, settings)
    assert cell.engine == "mine?x=1&kv=q8"
    assert cell.options == ("--kv-cache-dtype=int8", "--model=b-hash")
    assert cell_of("mine", axes, base_of(axes)).engine == "mine"
    assert folder_name(settings, base_of(axes)) == "kv-q8-model-b-hash"
    assert cell.without_model("m::test[b-hash-case]") == "m::test[*-case]"
    assert cell.on_model("m::test[*-case]") == "m::test[b-hash-case]"
    assert cell.without_model("m::test[b-hash2]") == "m::test[b-hash2]"


def answered(search: Search, broken: Iterable[Settings], unasked: Settings | None = None) -> Found:
    """Runs a search on an engine that breaks where all of one of these settings are."""

    def ask(settings: Settings, names: Collection[str]) -> Mapping[str, RequirementOutcome]:
        if unasked and unasked.items() <= settings.items():
            return dict.fromkeys(names, "no capability")
        is_broken = any(each.items() <= settings.items() for each in broken)
        return dict.fromkeys(names, "failed" if is_broken else "held")

    ((_, found),) = run_searches({(ONE, 0): search}, ask, 100)
    return found


@given(data=st.data())
def test_what_is_found_is_the_smallest_difference(data: st.DataObject) -> None:
    """Breaks where several axes have certain values: these are found, and no other."""
    names = data.draw(st.lists(st.sampled_from([*AXES]), min_size=1, unique=True))
    cause = dict.fromkeys(names, "on")
    others = {name: data.draw(st.sampled_from([*AXES[name]])) for name in AXES}
    found = answered(smallest_difference(others | cause, base_of(AXES)), [cause])
    assert found.decisive == dict.fromkeys(names, "off")
    assert found.at == base_of(AXES) | cause
    assert not found.unasked
    assert not found.note


def test_an_axis_that_mattered_is_asked_again_when_another_has_changed() -> None:
    at, base = dict.fromkeys("abc", "on"), dict.fromkeys("abc", "off")
    found = answered(smallest_difference(at, base), [{"a": "on", "b": "on"}, {"b": "off", "c": "on"}])
    assert (found.at, found.decisive) == (base | {"c": "on"}, {"c": "off"})


def test_what_cannot_be_asked_is_not_said_to_hold() -> None:
    breaking = {"a": "on", "b": "on", "c": "off", "d": "off"}
    search = smallest_difference(breaking, base_of(AXES))
    found = answered(search, [{"a": "on", "b": "on"}], unasked={"a": "off", "b": "on"})
    assert (found.decisive, found.unasked) == ({"b": "off"}, {"a": "off"})


@pytest.mark.parametrize(
    ("broken", "words"),
    [([], "among other tests"), ([{}], "it is failed when it is asked alone")],
)
def test_what_is_not_seen_again_alone_is_not_decided(broken: list[Settings], words: str) -> None:
    found = answered(smallest_difference({"a": "on"}, {"a": "off"}), broken)
    assert not found.decisive
    assert words in found.note


@pytest.mark.parametrize("does_break_first", [False, True])
@pytest.mark.parametrize("first_changed", range(1, 6))
def test_a_change_is_dated_by_halving(first_changed: int, does_break_first: bool) -> None:
    versions = [f"1.{i}" for i in range(6)]
    changed = [{"release": each} for each in versions[first_changed:]]
    rest = [{"release": each} for each in versions[:first_changed]]
    search = change_between("release", versions, does_break_first)
    found = answered(search, rest if does_break_first else changed)
    last, first = versions[first_changed - 1], versions[first_changed]
    broken, held = (last, first) if does_break_first else (first, last)
    assert (found.at, found.decisive) == ({"release": broken}, {"release": held})


def test_a_release_that_cannot_be_asked_is_passed_over() -> None:
    search = change_between("release", ["1", "2", "3", "4"], does_break_first=False)
    found = answered(search, [{"release": "4"}], unasked={"release": "2"})
    assert (found.at, found.decisive) == ({"release": "4"}, {"release": "3"})


def test_searches_that_wait_for_one_configuration_are_asked_in_one_run() -> None:
    runs = []

    def ask(settings: Settings, names: Collection[str]) -> Mapping[str, RequirementOutcome]:
        runs.append((dict(settings), sorted(names)))
        return dict.fromkeys(names, "failed" if settings["a"] == "on" else "held")

    searches = {(name, 0): smallest_difference({"a": "on"}, {"a": "off"}) for name in "xy"}
    assert len([*run_searches(searches, ask, 100)]) == 2
    assert runs == [({"a": "on"}, ["x", "y"]), ({"a": "off"}, ["x", "y"])]
    searches = {("x", 0): smallest_difference({"a": "on"}, {"a": "off"})}
    assert not [*run_searches(searches, ask, 1)], "no more runs than allowed"


def played(monkeypatch: pytest.MonkeyPatch, is_broken: Mapping[str, str]) -> list[str]:
    """Lets cells break one requirement where all these settings are; returns the engines judged."""
    asked: list[str] = []

    def outcome(cell: Cell) -> RequirementOutcome:
        return "failed" if is_broken.items() <= cell.settings.items() else "held"

    def judge_cell(task: CellTask, folder: Path) -> CellResult:
        asked.append(task.cell.engine)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "verdict.md").write_text("page")
        found = outcome(task.cell)
        options = tuple(task.session(Path()).options)
        result = PromiseResult("broken" if found == "failed" else "held")
        record = CellRecord(
            task.cell.settings, task.folder, task.cell.engine, options, 0.5, 10, {"P1": result}
        )
        failed = {ONE: "P1 parity is broken"} if found == "failed" else {}
        return CellResult(replace(record, failed=failed), {ONE: found})

    monkeypatch.setattr(cells, "judge_cell", judge_cell)
    monkeypatch.setattr(possible, "resolve_engine", lambda _: None)
    monkeypatch.setattr(matrix_command, "require_values", lambda *_: None)
    monkeypatch.setattr(
        matrix_command, "asked_alone", lambda task, names: dict.fromkeys(names, outcome(task.cell))
    )
    return asked


def test_a_matrix_says_what_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = played(monkeypatch, {"policy": "fcfs", "--dtype": "bfloat16"})
    axes = ["--axis=policy=sjf,fcfs", "--axis=--dtype=float32,bfloat16", "--axis=x=1,2"]
    assert main(["judge", "matrix", "static", *axes, f"--output={tmp_path}", "--jobs=1"]) == 1
    sentence = "breaks with policy=fcfs and dtype=bfloat16, holds without either"
    assert f"* {sentence}: P1 parity is broken" in capsys.readouterr().out
    folder = tmp_path / "matrices" / "static"
    record = MATRIX.read(folder / "matrix.json")
    assert (folder / "README.md").read_text() == matrix_page(record)
    assert f"**{sentence}**: P1 parity is broken. 1 requirement: `{ONE}`" in matrix_page(record)
    assert len(asked) == len(record.cells) == 4
    for cell in record.cells:
        assert (folder / cell.folder / "verdict.md").read_text() == "page"


def test_a_finding_is_one_row_and_its_requirements_are_asked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It breaks another requirement in each cell, and none that is asked alone."""
    played(monkeypatch, {})
    judge_cell = cells.judge_cell

    def judged(task: CellTask, folder: Path) -> CellResult:
        result, settings = judge_cell(task, folder), task.cell.settings
        outcomes = dict.fromkeys((ONE, OTHER), "held")
        failed = {}
        if settings["policy"] == "fcfs":
            name = ONE if settings["x"] == "1" else OTHER
            outcomes[name], failed[name] = "failed", "stale keys"
        return replace(result, record=replace(result.record, failed=failed), outcomes=outcomes)

    def asked(task: CellTask, names: Collection[str]) -> dict[str, str]:
        is_broken = len(names) == 2 and task.cell.settings["policy"] == "fcfs"
        return dict.fromkeys(names, "failed" if is_broken else "held")

    monkeypatch.setattr(cells, "judge_cell", judged)
    monkeypatch.setattr(matrix_command, "asked_alone", asked)
    issues = (SimpleNamespace(title="stale keys"),)
    monkeypatch.setattr(matrix_command, "read_issues", lambda _: issues)
    axes = ["--axis=policy=sjf,fcfs", "--axis=x=1,2"]
    assert main(["judge", "matrix", "static", *axes, f"--output={tmp_path}", "--jobs=1"]) == 1
    found = "breaks with policy=fcfs, holds with policy=sjf: stale keys"
    assert found in capsys.readouterr().out
    ((what, signs),) = told_rows(MATRIX.read(tmp_path / "matrices" / "static" / "matrix.json"))
    assert (what, sorted(signs)) == ("stale keys", ["failed", "failed", "held", "held"])


def test_where_nothing_can_be_asked_an_older_matrix_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played(monkeypatch, {"policy": "fcfs"})
    command = f"judge matrix static --axis=policy=sjf,fcfs --output={tmp_path} --jobs=1".split()
    assert main(command) == 1
    before = (tmp_path / "matrices" / "static" / "README.md").read_text()

    def empty(task: CellTask, _: Path) -> CellResult:
        record = CellRecord(task.cell.settings, task.folder, task.cell.engine, (), 0.0, why_not="no")
        return CellResult(record, {})

    monkeypatch.setattr(cells, "judge_cell", empty)
    assert main(command) == 2
    assert "'static?policy=sjf' is not judged, since no test was run" in capsys.readouterr().err
    assert (tmp_path / "matrices" / "static" / "README.md").read_text() == before


def test_a_matrix_that_is_stopped_keeps_the_cell_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, {"x": "none"})
    judge_cell, sent = cells.judge_cell, Interrupt(signal.SIGTERM)

    def stopped(task: CellTask, folder: Path) -> CellResult:
        result = judge_cell(task, folder)
        record = replace(result.record, why_not="the run did not come to its end")
        return replace(result, record=record, stopped=sent)

    monkeypatch.setattr(cells, "judge_cell", stopped)
    command = ["judge", "matrix", "static", "--axis=x=1,2,3", f"--output={tmp_path}", "--jobs=1"]
    assert main(command) == sent.exit_code
    page = (tmp_path / "matrices" / "static" / "README.md").read_text()
    assert "no requirement is broken in what was judged. Of 3 configurations: 2 missing, 1 not" in page


@pytest.mark.parametrize("halving", [[], ["--bisect"]])
def test_releases_are_dated(
    halving: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = played(monkeypatch, {"release": "3"})
    monkeypatch.setattr(libraries, "interpreter", lambda *_: "python")
    command = ["judge", "releases", "mlx", "1", "2", "3", f"--output={tmp_path}", "--jobs=1"]
    assert main([*command, *halving]) == 1
    assert "* broken in 3, held in 2: P1 parity is broken" in capsys.readouterr().out
    assert (
        asked == [f"mlx?release={each}" for each in ("1", "3" if halving else "2", "3")][: len(asked)]
    )
    assert len(asked) == (2 if halving else 3)


def test_another_release_is_installed_beside_the_same_pins() -> None:
    library = libraries.LIBRARIES["mlx"]
    other = library.requirements_of("0.31.3")
    assert "mlx-lm==0.31.3\n" in other
    pinned = library.requirements.read_text(encoding="utf-8")
    assert re.sub(r"mlx-lm==\S+", "mlx-lm==0.31.3", pinned) == other
    assert library.is_pinned(re.findall(r"mlx-lm==(\S+)", pinned)[0])
    assert not library.is_pinned("0.31.3")
    serving = libraries.LIBRARIES["transformers-serve"]
    assert "transformers[serving]==5.20.0\n" in serving.requirements_of("5.20.0")
    assert "\ntransformers==5.17.0\n" in libraries.LIBRARIES["vllm"].requirements_of("0.31.0")


def test_an_axis_that_was_not_met_leaves_what_broke_and_nothing_that_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"host": {"0": {}, "8": {"offload": "8", MET: ["evicted", "restored"]}}}
    cell = cell_of("mine", axes, {"host": "8"})
    assert cell.engine == "mine?offload=8"
    assert cell.proofs == {"host": ("evicted", "restored")}
    assert not cell.unmet({"evicted": 1, "restored": 2})
    assert cell.unmet({"evicted": 1, "restored": 0}) == "host=8 was not met: 0 restored"
    misspelt = cell.unmet({"evicted": 1, "hits": 3})
    assert misspelt == "host=8 was not met: nobody counts 'restored', but evicted, hits"

    played(monkeypatch, {"host": "8"})
    judge_cell = cells.judge_cell

    def judged(task: CellTask, folder: Path) -> CellResult:
        result = judge_cell(task, folder)
        if task.cell.settings["host"] == "0":
            return result
        outcomes: dict[str, RequirementOutcome] = {ONE: "held", OTHER: "failed"}
        record = replace(result.record, failed={OTHER: "P8 reuse is broken"} if is_broken else {})
        counted = PromiseResult("broken", failed=1) if is_broken else PromiseResult("held", passed=1)
        outcomes[OTHER] = "failed" if is_broken else "held"
        record = replace(record, promises={"P8": counted})
        return as_unmet(CellResult(record, outcomes), "host=8 was not met: 0 restored")

    monkeypatch.setattr(cells, "judge_cell", judged)
    spec = EngineSpec("static", resolve_engine("static").factory, axes)
    monkeypatch.setattr(matrix_command, "resolve_engine", lambda _: spec)
    for is_broken in (False, True):
        assert main(["judge", "matrix", "static", f"--output={tmp_path}", "--jobs=1"]) == 1
        told = capsys.readouterr().out
        assert "* not judged: host=8: host=8 was not met: 0 restored" in told
        folder = tmp_path / "matrices" / "static"
        record = MATRIX.read(folder / "matrix.json")
        assert not record.is_complete
        assert "**INCOMPLETE**" in matrix_page(record)
        assert [*record.outcomes] == ([OTHER] if is_broken else [])
        assert (folder / "host-8").is_dir() == is_broken


def axes_declared() -> Iterable[tuple[str, Axes]]:
    return [(name, each.axes) for name, each in libraries.LIBRARIES.items() if each.axes]


def test_axes_name_counters_that_there_are() -> None:
    named = {"paged": {*happened.COUNTERS, OFFLOADED, RESTORED, TRANSFERRED, REPLAYED}}
    for name, library in libraries.LIBRARIES.items():
        server = library.server
        of_server = [*server.events, *server.started] if server else []
        named[name] = {*happened.COUNTERS, *traffic.COUNTERS, *saved_slots.COUNTERS, *of_server}
    for name, known in named.items():
        for values in resolve_engine(name).axes.values():
            assert {proof for value in values.values() for proof in proof_of(value)} <= known, name


@pytest.mark.parametrize(("name", "axes"), axes_declared())
def test_declared_axes_set_options_that_the_engine_has(name: str, axes: Axes) -> None:
    library = libraries.LIBRARIES[name]
    own = {
        option
        for values in axes.values()
        for given in values.values()
        for option in given
        if not option.startswith("--") and option not in (MET, BESIDE)
    }
    client = CLIENT_OPTIONS if library.server else ()
    assert own <= {*library.options, *client}
    assert all(len(values) > 1 for values in axes.values())
