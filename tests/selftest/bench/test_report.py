"""The report page: it is whole and self-contained, and shows nothing that was not measured or right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from batchproof.__main__ import main
from batchproof.report import words
from batchproof.report.inputs import FILES, Kind
from tests.selftest.bench import samples

pytest.importorskip("matplotlib", reason="the report draws with it")

ROOT = Path(__file__).parents[3]
VOID = {"meta", "link", "br"}
Result = dict[str, Any]
Report = Callable[..., str]

CONFORMANCE: Result = {
    "schema": "batchproof.conformance/1",
    "made": samples.header()["made"],
    "engines": ["static", "ragged"],
    "models": ["gpt2-random"],
    "device": "cpu",
    "dtype": "float32",
    "cells": {
        "static": {"P1": {"text": "48", "passed": 48}, "P14": {"text": "no cap", "no_cap": 3}},
        "ragged": {"P1": {"text": "FAIL 2", "failed": 2, "passed": 46}},
    },
    "totals": {"static": {"num_requests": 100}, "ragged": {"num_requests": 90}},
    "exit_status": 1,
    "is_complete": True,
}


class Page(HTMLParser):
    """Every element must be closed by its own end tag; cells of tables are collected."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.attributes += given.items()
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in VOID:
            self.stack.append(tag)
        if given.get("role") == "region":
            self._rows = self.tables[given["aria-label"]] = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, f"</{tag}> ends another element"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in ("td", "th", "span") and self._rows and self._rows[-1]:
            self._rows[-1][-1] += data

    def column(self, table: str, engine: str) -> dict[str, str]:
        """Row head -> cell; a mark that refers to a note is no part of a cell."""
        head, *rows = self.tables[table]
        index = head.index(engine)
        return {row[0]: row[index] for row in rows}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Writes these results, and makes the page of them."""

    def make(*results: Result, options: tuple[str, ...] = ()) -> str:
        paths = [
            samples.saved(tmp_path / f"result{index}.json", each) for index, each in enumerate(results)
        ]
        page = tmp_path / "page.html"
        assert main(["report", *map(str, paths), f"--output={page}", *options]) == 0
        return page.read_text(encoding="utf-8")

    return make


def one_comparison(**changes: Any) -> Result:
    """A result of one workload, whose row of `ragged` is changed."""
    result = samples.made(workloads=["bimodal"])
    row = result["comparisons"][0]["rows"][1]
    assert row["engine"] == "ragged"
    row.update(changes)
    return result


FIGURES = "Figures of bimodal, model tiny in float32"


def test_the_page_is_well_formed_and_its_pictures_are(report: Report) -> None:
    faults = json.loads((ROOT / "results/faults.json").read_text())
    honest = json.loads((ROOT / "results/honest.json").read_text())
    results = [samples.made(), samples.made(workloads=["bimodal"], seed=1)]
    page = report(*results, CONFORMANCE, faults, honest)
    parsed = Page(page)
    assert not parsed.stack
    assert len(parsed.ids) == len(set(parsed.ids))
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) > 20
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        assert len(root.get("aria-label", "")) > 40
        assert root.find(".//text") is not None, "text stays text"
    referred = set(re.findall(r'(?:url\(#|href="#)([^")]+)', page))
    assert referred <= set(parsed.ids)


def test_the_page_loads_nothing_and_runs_nothing(report: Report) -> None:
    page = report(samples.made(workloads=["bimodal"]), CONFORMANCE)
    assert not re.search(r"https?://", page)
    assert "<script" not in page
    assert "@import" not in page
    loaded = [value for key, value in Page(page).attributes if key in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") or value == "data:," for value in loaded)


def test_both_themes_have_every_colour(report: Report) -> None:
    page = report(samples.made(workloads=["bimodal"]))
    used = set(re.findall(r"var\((--[\w]+)\)", page))
    light, dark = page.split("@media (prefers-color-scheme: dark)")
    for name in used - {"--sans"}:
        assert f"{name}: #" in light.partition("</style>")[0]
        assert f"{name}: #" in dark.partition("</style>")[0]
    assert not re.search(r"(?:fill|stroke): #(?!ffffff|1f2328)", page), "a colour of no theme"


def test_the_same_results_make_the_same_page(report: Report) -> None:
    results = samples.made(workloads=["bimodal"])
    assert report(results) == report(results)


def test_an_invalid_row_has_no_figure(report: Report) -> None:
    page = report(one_comparison(verdict="INVALID", reason="r3: <one> token too few", metrics=None))
    parsed = Page(page)
    column = parsed.column(FIGURES, "ragged")
    assert column.pop("verdict") == "INVALID"
    assert {value.strip() for value in column.values()} == {"-", ""}
    assert "r3: &lt;one&gt; token too few" in page
    assert "INVALID: no throughput is shown" in page
    assert ">INVALID</span> 1 comparison: 1 of 2 rows VALID, 1 INVALID" in page
    assert "Batches: ragged" not in page
    assert "ragged: exponent" in page, "growth is another measurement, with a verdict of its own"


def test_an_unverified_row_says_so(report: Report) -> None:
    page = report(one_comparison(verdict="UNVERIFIED", reason="no token was checked"))
    assert "UNVERIFIED: no token was checked" in page
    assert ">UNVERIFIED</span> 1 comparison: 1 of 2 rows VALID" in page


def test_what_is_not_defined_is_a_dash_and_never_nought(report: Report) -> None:
    result = one_comparison(interface="generate", distributions=None)
    row = result["comparisons"][0]["rows"][1]
    row["metrics"].update({key: None for key in row["metrics"] if key.endswith("_ms")})
    row["schedule"] = dict.fromkeys(row["schedule"])
    page = report(result)
    column = Page(page).column(FIGURES, "ragged")
    undefined = {title for title, value in column.items() if value == "-"}
    latencies = {title for title in column if title.endswith(("(ttft)", "(tpot)", "(itl)", "(e2el)"))}
    assert len(latencies) == 4
    assert latencies | {"steps", "mean batch", "slots occupied", "bound by"} <= undefined
    assert not {"0", "0 %", "0 / 0", "nan", "None"} & set(column.values())
    assert "only an engine that is stepped shows when a token comes" in page
    assert "the engine shows no trace" in page


def test_numbers_read_as_people_write_them() -> None:
    assert [words.number(each) for each in (None, 0, 0.04567, 3.14159, 12.34, 1834.4)] == [
        "-",
        "0",
        "0.0457",
        "3.14",
        "12.3",
        "1,834",
    ]
    assert [words.share(each) for each in (None, 0, 0.004, 0.31, 1.2)] == [
        "-",
        "0 %",
        "0.4 %",
        "31 %",
        "120 %",
    ]
    assert [words.size(each) for each in (None, 0, 2048, 3 * 2**30)] == [
        "-",
        "0 B",
        "2.00 KiB",
        "3.00 GiB",
    ]


def test_a_run_that_was_stopped_is_marked(report: Report) -> None:
    stopped = samples.made(workloads=["bimodal"], is_complete=False)
    assert report(stopped).count(">INCOMPLETE</span>") == 2  # at the top, and with the environment
    assert ">INCOMPLETE</span>" not in report(CONFORMANCE)


def test_names_that_mean_something_to_html_or_matplotlib_are_shown_as_they_are(
    report: Report,
) -> None:
    name = "_my<b>.mod:$x^2$&co"
    page = report(samples.made(workloads=["bimodal"], engines=["static", name], speeds={}))
    Page(page)
    assert "_my&lt;b&gt;.mod:$x^2$&amp;co" in page
    assert "<b>" not in page


def test_a_conformance_table_is_shown_cell_by_cell(report: Report) -> None:
    page = report(CONFORMANCE)
    table = Page(page).tables["Conformance: engine by promise"]
    assert table == [
        ["promise", "static", "ragged"],
        ["P1 parity", "48", "FAIL 2"],
        ["P14 stream", "no cap", "-"],
    ]
    assert ">FAIL</span> conformance of 2 engines" in page


def test_faults_are_counted_by_class(report: Report) -> None:
    kill = {"broken": "P1", "cause": "MASK"}
    fault = {"class": "masks", "promise": "P1", "cause": "MASK", "home": ["m"], "kills": [kill]}
    other = fault | {"kills": [kill | {"cause": "EOS", "broken": "P2"}]}
    missed = fault | {"class": "reuse", "home": []}
    faults = {"one": fault, "two": other, "three": missed}
    rest = {
        "schema": "batchproof.kill-table/1",
        "made": CONFORMANCE["made"],
        "diagnosis": {},
        "models": ["m"],
    }
    page = report(rest | {"faults": faults, "seeds": [1], "is_complete": True})
    rows = {row[0]: row[1:4] for row in Page(page).tables["Planted faults by class"]}
    assert rows["masks"] == ["2 of 2", "1 of 2", "1 of 2"]
    assert rows["reuse"] == ["0 of 1", "0 of 0", "-"]
    assert ">MISSED</span> 2 of 3 planted faults caught" in page


def test_a_growth_entry_without_figures_is_told_and_not_drawn(report: Report) -> None:
    result = samples.made(workloads=["bimodal"])
    bad = samples.growth("ragged", "sequences") | {
        "verdict": "INVALID",
        "reason": "P1 is broken: planted",
        "points": [],
        "fit": None,
    }
    result["growth"] = [samples.growth("static", "sequences"), bad]
    page = report(result)
    assert "INVALID: P1 is broken: planted" in page
    assert "static: exponent" in page
    assert "ragged: exponent" not in page


def test_pictures_stand_alone(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    report(samples.made(workloads=["bimodal"]), options=(f"--pictures={folder}",))
    names = {path.stem for path in folder.iterdir()}
    growth = {"growth-sequences", "growth-context", "growth-prompt"}
    assert names == {"ratios", "throughput", "slots"} | growth
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in text
        assert 'fill="#ffffff"' in text
        assert "2 cores of Some CPU" in re.sub(r"</text><text[^>]*>", " ", text)


def test_without_names_all_known_results_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert main(["report"]) == 2
    assert "there is no result file in 'results'" in capsys.readouterr().err
    samples.saved(tmp_path / "results/a.json", samples.made(workloads=["bimodal"]))
    samples.saved(tmp_path / "results/b.json", {"schema": "another/1"})
    assert main(["report"]) == 0
    assert "left out: results/b.json is of another schema" in capsys.readouterr().err
    assert "a.json" in (tmp_path / "results/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no result file"),
        ("{", "is no result file: it is not JSON"),
        ('{"schema": "another/1"}', "is no result file that a report is made of"),
        ('{"schema": "batchproof.benchmark/9"}', "this version of Batchproof reads up to"),
        ('{"schema": "batchproof.conformance/1"}', "is damaged: it has no 'made'"),
        ('{"schema_version": 1, "faults": 3}', "is no result file that a report is made of"),
        ('{"schema": "batchproof.kill-table/1", "faults": 3}', "is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, expected: str
) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), f"--output={tmp_path / 'page.html'}"]) == 2
    told = capsys.readouterr().err
    assert expected in told
    assert told.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_file_that_is_damaged_deep_inside_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = samples.saved(tmp_path / "result.json", CONFORMANCE | {"cells": {"static": {"P1": {}}}})
    assert main(["report", str(path), f"--output={tmp_path / 'page.html'}"]) == 2
    assert "result.json' is damaged" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "none.json", f"--output={tmp_path / 'gone' / 'page.html'}"]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_without_matplotlib_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "batchproof.report.find_spec", lambda name: None if name == "matplotlib" else name
    )
    assert main(["report"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_every_kind_of_file_has_its_reader() -> None:
    assert set(FILES) == set(Kind)
