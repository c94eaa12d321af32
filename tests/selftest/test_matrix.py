"""`batchproof judge matrix` and `judge releases`: cells, searches for what decides, and the page."""

import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.__main__ import main
from batchproof.checks import happened
from batchproof.errors import Interrupt, UsageError
from batchproof.judgement import possible
from batchproof.judgement.axes import Value, axes_of, base_of, cell_of, chosen, declared_axes
from batchproof.judgement.deciding import Search, change_between, run_searches, smallest_difference
from batchproof.judgement.matrix_page import matrix_page
from batchproof.judgement.suite_session import ENDED, Session
from batchproof.plugin import deselection
from batchproof.records.journal import TESTS, JournalEntry, NoHead
from batchproof.records.matrix import MATRIX, Found, Settings, told_rows
from batchproof.records.provenance import made_now
from batchproof.records.trial_record import FailureRecord, Ledger, TrialRecord
from batchproof.records.verdict import VERDICT, Conditions, RequirementOutcome
from batchproof.requirements.verdict_of_journal import verdict_of
from batchproof.run.registry import resolve_engine
from batchproof_engines.adapters.openai import saved_slots, traffic
from batchproof_engines.adapters.released import CLIENT_OPTIONS, libraries
from batchproof_paged.block_manager import OFFLOADED, RESTORED, TRANSFERRED
from batchproof_paged.graphs import REPLAYED

AXES = {
    name: {value: Value({name: value}) for value in ("off", "on", "more")[:n]}
    for name, n in zip("abcd", (2, 2, 3, 2), strict=True)
}
ONE, OTHER = "test_parity::test_it[llama-hash]", "test_reuse::test_it[llama-hash]"


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
    declared = {
        "tp": {"1": {}, "2": {"tp": "2", "beside": {"pp": "1"}}},
        "pp": {"1": {}, "2": {"pp": "2", "beside": {"tp": "1"}}},
        "ep": {"off": {}, "on": {"ep": "on", "beside": {"tp": "2"}}},
    }
    parallel = declared_axes(declared)
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
    models = {name: {"--model": name} for name in ("llama-hash", "mistral-hash", "mixtral-hash")}
    on = {"ep": "on", "beside": {"--model": "mixtral-hash"}}
    experts = declared_axes({"--model": models, "ep": {"off": {}, "on": on}})
    asked = chosen(axes_of(experts, ["ep"], "mine"))
    met = [(each["ep"], each["--model"]) for each in asked]
    assert met[0] == ("off", "llama-hash")
    assert {*met} == {met[0], ("off", "mixtral-hash"), ("on", "mixtral-hash")}
    with pytest.raises(UsageError, match="'ep': on may stand beside no other value: it needs tp=2"):
        chosen(axes_of(parallel, ["ep", "tp=1,4"], "mine"))
    without_tp = chosen(axes_of(parallel, ["pp", "ep"], "mine"))
    assert {"pp": "2", "ep": "on"} not in without_tp, "what ep needs excludes pp"


def test_what_this_machine_or_the_engine_cannot_have_is_told_first() -> None:
    axes = declared_axes(
        {
            "graphs": {"off": {}, "on": {"graphs": "true", "--device": "cuda:99"}},
            "kept": {"no": {}, "yes": {"kept": "true", "beside": {"graphs": "on", "pool": "large"}}},
            "pool": {"small": {}, "large": {"beside": {"kept": "yes"}}},
            "ranks": {"2": {"--device": "cuda:99"}},
        }
    )
    left, sentences = possible.available(axes)
    assert chosen(left) == [{"graphs": "off", "kept": "no", "pool": "small"}]
    told = [each.partition(":")[0] for each in sentences]
    assert told == ["graphs=on", "kept=yes", "pool=large", "ranks=2"]


def test_a_value_sets_options_of_the_engine_and_of_the_suite() -> None:
    declared = {"kv": {"f32": {}, "q8": {"kv": "q8", "--kv-cache-dtype": "int8"}}}
    axes = axes_of(declared_axes(declared), ["kv", "--model=a-hash,b-hash"], "mine")
    settings = {"kv": "q8", "--model": "b-hash"}
    cell = cell_of("mine?x=1", axes, settings)
    assert cell.engine == "mine?x=1&kv=q8"
    assert cell.options == ("--kv-cache-dtype=int8", "--model=b-hash")
    assert cell_of("mine", axes, base_of(axes)).engine == "mine"
    assert cell.folder == "kv-q8-model-b-hash"
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

    ((_, found),) = run_searches([(ONE, search)], ask, 100)
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


A, B, C = {"a": "on"}, {"b": "on"}, {"c": "on"}
NONE = dict.fromkeys("abc", "off")


@pytest.mark.parametrize(
    ("breaking", "broken", "unasked", "found"),
    [
        pytest.param(
            *({**A, **B, **C}, [A | B, {"b": "off"} | C], None, Found(NONE | C, {"c": "off"})),
            id="an axis that mattered is asked again when another has changed",
        ),
        pytest.param(
            *(NONE | A | B, [A | B], {"a": "off"} | B),
            Found(NONE | A | B, {"b": "off"}, {"a": "off"}),
            id="what cannot be asked is not said to hold",
        ),
        pytest.param(
            *(NONE | A, [], None),
            Found(NONE | A, {}, {}, "it breaks there among other tests, not when it is asked alone"),
            id="not seen again alone",
        ),
        pytest.param(
            *(NONE | A, [{}], None),
            Found(NONE | A, {}, {}, "where it held, it is failed when it is asked alone"),
            id="broken everywhere alone",
        ),
    ],
)
def test_what_is_found(
    breaking: Settings, broken: list[Settings], unasked: Settings | None, found: Found
) -> None:
    assert answered(smallest_difference(breaking, NONE), broken, unasked) == found


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

    def searches(names: str) -> list[tuple[str, Search]]:
        return [(name, smallest_difference({"a": "on"}, {"a": "off"})) for name in names]

    assert len([*run_searches(searches("xyx"), ask, 100)]) == 3
    assert runs == [({"a": "on"}, ["x", "y"]), ({"a": "off"}, ["x", "y"])]
    assert not [*run_searches(searches("x"), ask, 1)], "no more runs than allowed"


Breaks = Callable[[str, Collection[str]], Collection[str]]
Judged = Callable[..., list[str]]
ENGINE = """
def Engine(model, config, **options): ...

Engine.axes = {"host": {"0": {}, "8": {"offload": "8", "met": ["evicted", "restored"]}}}
"""
FOLDER = Path("matrices/mine.py-Engine")


def where(*settings: str) -> Breaks:
    """Breaks one requirement where all these settings are."""
    return lambda cell, _: [ONE] if all(each in cell for each in settings) else []


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """Lets runs of the suite on any engine break requirements, by the text of a configuration and
    which are asked alone; `end` is raised or returned by each. Returns the configurations that are
    asked, as they are."""
    (tmp_path / "mine.py").write_text(ENGINE)
    monkeypatch.chdir(tmp_path)

    def played(breaks: Breaks, end: int | Interrupt = ENDED[1], **counters: int) -> list[str]:
        asked: list[str] = []

        def run(self: Session) -> int:
            asked.append(" ".join([self.engine, *self.options]))
            one = f"{deselection.ONE}="
            alone = [each.removeprefix(one) for each in self.options if each.startswith(one)]
            broken = breaks(asked[-1], alone)
            if end in ENDED or isinstance(end, Interrupt):
                names = alone or (ONE, OTHER)
                found = [entry_of(self.engine, each, each in broken, counters) for each in names]
                with closing(TESTS.append_to(self.journal, NoHead())) as journal:
                    for each in found:
                        journal.append(each)
                if isinstance(end, Interrupt):
                    raise end
                verdict = verdict_of(self.engine, found, True, made_now(), "pytest", Conditions())
                VERDICT.write(verdict, self.verdict)
            return int(end)

        monkeypatch.setattr(Session, "run", run)
        return asked

    return played


def entry_of(engine: str, requirement: str, is_broken: bool, counters: dict[str, int]) -> JournalEntry:
    promise = "P1" if requirement == ONE else "P8"
    failure = FailureRecord(promise, "token", "broken") if is_broken else None
    ledger = Ledger(num_requests=5, release="mine 1", counters=counters)
    asked = TrialRecord(engine, "llama-hash", (promise,), requirement=requirement)
    record = replace(asked, ledger=ledger, failure=failure)
    return JournalEntry(requirement, "failed" if is_broken else "passed", record=record)


def judge(what: str) -> int:
    return main(["judge", *what.split(), "--output=.", "--jobs=1"])


def test_a_matrix_says_what_decides(judged: Judged, capsys: pytest.CaptureFixture[str]) -> None:
    asked = judged(where("policy=fcfs", "--dtype=bfloat16"))
    axes = "--axis=policy=sjf,fcfs --axis=--dtype=float32,bfloat16 --axis=x=1,2"
    assert judge(f"matrix mine.py:Engine {axes}") == 1
    sentence = "breaks with policy=fcfs and dtype=bfloat16, holds without either"
    assert f"* {sentence}: P1 parity is broken" in capsys.readouterr().out
    record = MATRIX.read(FOLDER / "matrix.json")
    assert (FOLDER / "README.md").read_text() == matrix_page(record)
    assert f"| P1 parity is broken | `{ONE}` | **{sentence}** |" in matrix_page(record)
    assert len(record.cells) == 4
    assert [deselection.ONE in each for each in asked].index(True) == 4
    for cell in record.cells:
        assert (FOLDER / cell.folder / "verdict.md").is_file()
    num_asked = len(asked)
    assert judge(f"matrix mine.py:Engine {axes} --resume") == 1
    assert [deselection.ONE in each for each in asked[num_asked:]] == [True] * record.num_probes


FINDINGS = "[{engine: mine, title: stale keys, kind: defect, matches: [{rule: token}], cause: it}]"


def test_a_finding_is_one_row_and_its_requirements_are_asked_together(
    judged: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    """It breaks another requirement in each cell, and none that is asked alone."""

    def breaks(cell: str, alone: Collection[str]) -> Collection[str]:
        one_of_two = ONE if "x=1" in cell else OTHER
        broken = {0: [one_of_two], 1: [], 2: [OTHER]}[len(alone)]
        return broken if "policy=fcfs" in cell else []

    judged(breaks)
    Path("findings.yaml").write_text(FINDINGS)
    axes = "--axis=policy=sjf,fcfs --axis=x=1,2 --findings=findings.yaml"
    assert judge(f"matrix mine.py:Engine {axes}") == 1
    found = "breaks with policy=fcfs, holds with policy=sjf: stale keys"
    assert found in capsys.readouterr().out
    ((what, signs),) = told_rows(MATRIX.read(FOLDER / "matrix.json"))
    assert (what, sorted(signs)) == ("stale keys", ["failed", "failed", "held", "held"])


def test_where_nothing_can_be_asked_an_older_matrix_stays(
    judged: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "matrix mine.py:Engine --axis=policy=sjf,fcfs"
    judged(where("policy=fcfs"))
    assert judge(command) == 1
    before = (FOLDER / "README.md").read_text()
    judged(where("policy=fcfs"), end=4)
    assert judge(command) == 2
    assert "'mine.py:Engine?policy=sjf' is not judged, since no test" in capsys.readouterr().err
    assert (FOLDER / "README.md").read_text() == before


def test_a_matrix_that_is_stopped_keeps_the_cell_in_progress(judged: Judged) -> None:
    sent = Interrupt(signal.SIGTERM)
    judged(where("x=none"), end=sent)
    assert judge("matrix mine.py:Engine --axis=x=1,2,3") == sent.exit_code
    page = (FOLDER / "README.md").read_text()
    assert "1 configuration, 10 answers: no requirement is broken." in page
    assert "* not judged: 2 more\n" in page


@pytest.mark.parametrize("halving", ["", "--bisect"])
def test_releases_are_dated(
    halving: str, judged: Judged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = judged(where("release=3"))
    monkeypatch.setattr(libraries, "interpreter", lambda *_: "python")
    assert judge(f"releases mlx 1 2 3 {halving}") == 1
    assert "* broken in 3, held in 2: P1 parity is broken" in capsys.readouterr().out
    whole = [each.partition(" ")[0] for each in asked if deselection.ONE not in each]
    assert whole == [f"mlx?release={each}" for each in ("13" if halving else "123")]


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


@pytest.mark.parametrize(
    ("broken_where", "outcomes"),
    [("nowhere", ()), ("offload=8", ("held", "failed")), ("Engine --", ("failed", "not run"))],
)
def test_an_axis_that_was_not_met_leaves_what_broke_and_nothing_that_held(
    broken_where: str, outcomes: tuple[str, ...], judged: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(where(broken_where), evicted=1, restored=0)
    assert judge("matrix mine.py:Engine") == 1
    told = capsys.readouterr().out
    assert "* not judged: host=8: host=8 was not met: 0 restored" in told
    record = MATRIX.read(FOLDER / "matrix.json")
    assert not record.is_complete
    assert "**INCOMPLETE**" in matrix_page(record)
    assert record.outcomes == ({ONE: outcomes} if outcomes else {})
    is_broken = "failed" in outcomes[1:]
    assert [*record.cells[1].promises] == (["P1"] if is_broken else [])
    assert (FOLDER / "host-8").is_dir() == is_broken


def test_a_proof_that_nobody_counts_is_named() -> None:
    cell = cell_of("mine", {"host": {"8": Value({}, ("evicted", "restored"))}}, {"host": "8"})
    assert not cell.unmet({"evicted": 1, "restored": 2})
    misspelt = cell.unmet({"evicted": 1, "hits": 3})
    assert misspelt == "host=8 was not met: nobody counts 'restored', but evicted, hits"


@pytest.mark.parametrize("name", ["paged", *libraries.LIBRARIES])
def test_declared_axes_name_counters_options_and_values_that_there_are(name: str) -> None:
    axes = declared_axes(resolve_engine(name).axes)
    declared = [each for values in axes.values() for each in values.values()]
    counted = {*happened.COUNTERS, OFFLOADED, RESTORED, TRANSFERRED, REPLAYED}
    if library := libraries.LIBRARIES.get(name):
        server = library.server
        of_server = [*server.events, *server.started] if server else []
        counted = {*happened.COUNTERS, *traffic.COUNTERS, *saved_slots.COUNTERS, *of_server}
        given = {option for each in declared for option in each.options if option[:2] != "--"}
        assert given <= {*library.options, *(CLIENT_OPTIONS if server else ())}
    assert {proof for each in declared for proof in each.met} <= counted
    assert all(len(values) > 1 for values in axes.values())
    assert all(value in axes[other] for each in declared for other, value in each.beside.items())
