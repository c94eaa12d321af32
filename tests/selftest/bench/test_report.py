"""The report page: it is whole and self-contained, and shows nothing that was not measured or right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from batchproof.__main__ import main
from batchproof.drawing.picture import Picture
from batchproof.drawing.theme import THEME, in_page
from batchproof.drawing.timeline_svg import LEFT, timeline_picture
from batchproof.report import words
from batchproof.report.campaigns import Faults
from batchproof.report.conformance_tables import Conformance
from batchproof.report.file_origins import INCOMPLETE, Fact, origin
from batchproof.report.inputs import Kind, Source, sources
from batchproof.report.page import page
from batchproof.report.table_values import Chip, Table
from batchproof.report.timelines import timeline
from tests.selftest.bench import samples
from tests.selftest.html_page import Html

if TYPE_CHECKING:  # else every session that collects this file imports matplotlib
    from batchproof.report.comparisons import Benchmark
    from batchproof.report.page import Page

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="the report draws with it")

ROOT = Path(__file__).parents[3]
Result = dict[str, Any]

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


def page_of(tmp_path: Path, *results: Result) -> Page:
    """The values of the page, without drawing a picture."""
    paths = [samples.saved(tmp_path / f"{index}.json", each) for index, each in enumerate(results)]
    return page(sources(paths))


def benchmark_in(shown: Page) -> Benchmark:
    from batchproof.report.comparisons import Benchmark

    content = shown.sections[0].content
    assert isinstance(content, Benchmark)
    return content


def benchmark_of(tmp_path: Path, result: Result) -> Benchmark:
    return benchmark_in(page_of(tmp_path, result))


def column(table: Table, engine: str) -> dict[str, str]:
    """The text of each cell of an engine, by the head of its row."""
    index = table.head.index(engine) - 1
    return {row.head: row.cells[index].text for row in table.rows if row.cells}


def drawn(picture: Picture | None) -> str:
    assert picture is not None
    return picture.body(in_page, "x-")


@dataclass(frozen=True)
class Written:
    """One run of the command on a file of each kind."""

    html: str
    folder: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("report")
    name = "_my<b>.mod:$x^2$&co"
    wrong = one_comparison(seed=1, verdict="INVALID", reason="r3: <one> token too few", metrics=None)
    results = [
        samples.made(workloads=["bimodal"], engines=["static", name], speeds={}),
        wrong | {"growth": []},
        CONFORMANCE,
        *(json.loads((ROOT / f"results/{name}.json").read_text()) for name in ("faults", "honest")),
    ]
    paths = [samples.saved(folder / f"{index}.json", each) for index, each in enumerate(results)]
    output, pictures = folder / "page.html", folder / "pictures"
    pictures.mkdir()
    assert main(["report", *map(str, paths), f"--output={output}", f"--pictures={pictures}"]) == 0
    return Written(output.read_text(encoding="utf-8"), pictures)


def one_comparison(seed: int = 0, **changes: Any) -> Result:
    """A result of one workload, whose row of `ragged` is changed."""
    result = samples.made(workloads=["bimodal"], seed=seed)
    row = result["comparisons"][0]["rows"][1]
    assert row["engine"] == "ragged"
    row.update(changes)
    return result


def test_the_page_is_well_formed_and_its_pictures_are(written: Written) -> None:
    parsed = Html(written.html)
    assert not parsed.stack
    ids = parsed.all("id")
    assert len(ids) == len(set(ids))
    pictures = re.findall(r"<svg.*?</svg>", written.html, re.DOTALL)
    assert len(pictures) == 16
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        assert len(root.get("aria-label", "")) > 40
        assert root.find(".//text") is not None, "text stays text"
    referred = set(re.findall(r'(?:url\(#|href="#)([^")]+)', written.html))
    assert referred <= set(ids)


def test_the_page_loads_nothing_and_runs_nothing(written: Written) -> None:
    assert not re.search(r"https?://|<script|@import", written.html)
    parsed = Html(written.html)
    loaded = [value for key in ("src", "href", "xlink:href") for value in parsed.all(key)]
    assert all(value.startswith("#") or value == "data:," for value in loaded)


def test_both_themes_have_every_colour(written: Written) -> None:
    used = set(re.findall(r"var\(--(\w+)\)", written.html))
    assert used - {"sans"} <= set(THEME)
    for is_dark in (0, 1):
        declared = [f"--{name}: {shades[is_dark]};" for name, shades in THEME.items()]
        assert " ".join(declared) in written.html
    assert not re.search(r"(?:fill|stroke): #(?!ffffff|1f2328)", written.html), "a colour of no theme"


def test_the_same_picture_is_drawn_the_same(tmp_path: Path) -> None:
    content = benchmark_of(tmp_path, samples.made(workloads=["bimodal"]))
    for picture in (content.ratios, content.comparisons[0].slots):
        assert drawn(picture) == drawn(picture)


def test_names_that_mean_something_to_html_or_matplotlib_are_shown_as_they_are(
    written: Written,
) -> None:
    words = Html(written.html).words
    assert any("_my<b>.mod:$x^2$&co" in each for each in words)
    assert "INVALID: r3: <one> token too few" in " ".join(words).replace("is INVALID", "INVALID")
    assert "<b>" not in written.html


def test_an_invalid_row_has_no_figure(tmp_path: Path) -> None:
    shown = page_of(tmp_path, one_comparison(verdict="INVALID", reason="too short", metrics=None))
    assert shown.verdicts[0].chips[0] == Chip("INVALID", "bad")
    assert shown.verdicts[0].text == "1 comparison: 1 of 2 rows VALID, 1 INVALID"
    content = benchmark_in(shown)
    (comparison,) = content.comparisons
    figures = column(comparison.figures, "ragged")
    assert comparison.figures.rows[0].cells[1].chip == Chip("INVALID", "bad")
    assert {value for head, value in figures.items() if head != "verdict"} == {"-"}
    assert comparison.unwell == {"ragged": "INVALID: too short"}
    assert "INVALID: no throughput is shown" in drawn(comparison.throughput)
    assert [each.title for each in comparison.compositions] == ["Batches: static"]
    assert content.growth is not None, "growth is another measurement, with a verdict of its own"
    assert "ragged: exponent" in drawn(content.growth.pictures[0])


def test_an_unverified_row_says_so(tmp_path: Path) -> None:
    shown = page_of(tmp_path, one_comparison(verdict="UNVERIFIED", reason="no token was checked"))
    assert shown.verdicts[0].chips == (Chip("UNVERIFIED", "warn"),)
    content = benchmark_in(shown)
    assert content.comparisons[0].unwell == {"ragged": "UNVERIFIED: no token was checked"}


def test_what_is_not_defined_is_a_dash_and_never_nought(tmp_path: Path) -> None:
    result = one_comparison(interface="generate", distributions=None)
    row = result["comparisons"][0]["rows"][1]
    row["metrics"].update({key: None for key in row["metrics"] if key.endswith("_ms")})
    row["schedule"] = dict.fromkeys(row["schedule"])
    table = benchmark_of(tmp_path, result).comparisons[0].figures
    figures = column(table, "ragged")
    undefined = {title for title, value in figures.items() if value == "-"}
    latencies = {title for title in figures if title.endswith(("(ttft)", "(tpot)", "(itl)", "(e2el)"))}
    assert len(latencies) == 4
    assert latencies | {"steps", "mean batch", "slots occupied", "bound by"} <= undefined
    assert not {"0", "0 %", "0 / 0", "nan", "None"} & set(figures.values())
    for row in table.rows:
        for cell in row.cells:
            assert (cell.text == "-") == (cell.note is not None)
    assert "only an engine that is stepped shows when a token comes" in table.notes
    assert "the engine shows no trace" in table.notes


def test_a_stay_in_a_slot_is_drawn_where_it_was() -> None:
    result = samples.made(workloads=["bimodal"])
    written = result["comparisons"][0]["rows"][0]["schedule"]["timeline"]
    read = timeline(written)
    assert read.num_busy == sum(len(each["prefill"]) + each["decodes"] for each in written["stays"])
    picture = timeline_picture([("static", read)], {str(n): "" for n in range(1, 25)}, "", "")
    (panel,) = picture.panels
    step = panel.width / written["num_steps"]
    for bar, each in zip(panel.bars, written["stays"], strict=True):
        ((num_tokens, num_fed),) = each["prefill"]
        assert bar.name == str(each["request"] + 1)
        assert bar.outline.x == pytest.approx(LEFT + each["start"] * step)
        assert bar.outline.width == pytest.approx((1 + each["decodes"]) * step)
        assert bar.outline.y == panel.slots[each["slot"]][1]
        assert bar.parts[0].height / bar.outline.height == pytest.approx(num_tokens / num_fed)
    assert len(panel.barriers) == len(written["barriers"])


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (
            words.number,
            {None: "-", 0: "0", 0.04567: "0.0457", 3.14159: "3.14", 12.34: "12.3", 1834.4: "1,834"},
        ),
        (words.share, {None: "-", 0: "0 %", 0.004: "0.4 %", 0.31: "31 %", 1.2: "120 %"}),
        (words.size, {None: "-", 0: "0 B", 2048: "2.00 KiB", 3 * 2**30: "3.00 GiB"}),
    ],
)
def test_numbers_read_as_people_write_them(
    write: Callable[[Any], str], texts: dict[float | None, str]
) -> None:
    assert {value: write(value) for value in texts} == texts


def test_a_run_that_was_stopped_is_marked(tmp_path: Path) -> None:
    shown = page_of(tmp_path, samples.made(workloads=["bimodal"], is_complete=False), CONFORMANCE)
    assert [INCOMPLETE in each.chips for each in shown.verdicts] == [True, False]
    states = [fact.chip for each in shown.origins for fact in each.facts if fact.name == "state"]
    assert states == [INCOMPLETE, None]


def test_a_conformance_table_is_shown_cell_by_cell(tmp_path: Path) -> None:
    shown = page_of(tmp_path, CONFORMANCE)
    content = shown.sections[0].content
    assert isinstance(content, Conformance)
    assert content.table.head == ("promise", "static", "ragged")
    assert [(row.head, *(cell.text for cell in row.cells)) for row in content.table.rows] == [
        ("P1 parity", "48", "FAIL 2"),
        ("P14 stream", "no cap", "-"),
    ]
    assert shown.verdicts[0].chips == (Chip("FAIL", "bad"),)
    assert shown.verdicts[0].text.startswith("conformance of 2 engines")


def test_faults_are_counted_by_class(tmp_path: Path) -> None:
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
    shown = page_of(tmp_path, rest | {"faults": faults, "seeds": [1], "is_complete": True})
    content = shown.sections[0].content
    assert isinstance(content, Faults)
    rows = {row.head: [cell.text for cell in row.cells[:3]] for row in content.table.rows}
    assert rows == {
        "masks": ["2 of 2", "1 of 2", "1 of 2"],
        "reuse": ["0 of 1", "0 of 0", "-"],
        "all": ["2 of 3", "1 of 2", "1 of 2"],
    }
    assert shown.verdicts[0].chips == (Chip("MISSED", "bad"),)
    assert shown.verdicts[0].text.startswith("2 of 3 planted faults caught")


def test_a_growth_entry_without_figures_is_listed_and_not_drawn(tmp_path: Path) -> None:
    result = samples.made(workloads=["bimodal"])
    bad = samples.growth("ragged") | {
        "verdict": "INVALID",
        "reason": "P1 is broken: planted",
        "points": [],
        "fit": None,
    }
    result["growth"] = [samples.growth("static"), bad]
    growth = benchmark_of(tmp_path, result).growth
    assert growth is not None
    assert growth.unwell == {"ragged": "INVALID: P1 is broken: planted"}
    (picture,) = growth.pictures
    svg = drawn(picture)
    assert "static: exponent" in svg
    assert "ragged: exponent" not in svg


def test_pictures_stand_alone(written: Written) -> None:
    names = {path.stem for path in written.folder.iterdir()}
    assert names == {"ratios", "throughput", "slots", "growth-sequences"}
    for path in written.folder.iterdir():
        text = path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in text
        assert "2 cores of Some CPU" in " ".join(word.strip() for word in root.itertext())


def test_without_names_all_known_results_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert main(["report"]) == 2
    assert "there is no result file in 'results'" in capsys.readouterr().err
    samples.saved(tmp_path / "results/a.json", CONFORMANCE)
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
        (json.dumps(CONFORMANCE | {"cells": {"static": {"P1": {}}}}), "result.json' is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, expected: str
) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), f"--output={tmp_path / 'page.html'}"]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


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


def test_a_benchmark_file_is_a_page_of_tables_with_a_picture(tmp_path: Path) -> None:
    result = samples.made(workloads=["bimodal", "uniform"])
    wide, wrong = (each["rows"][1] for each in result["comparisons"])
    wide["num_at_once"] = 2 * samples.SLOTS
    wrong.update(verdict="INVALID", reason="a token too few", metrics=None)
    page = tmp_path / "page.md"
    file = samples.saved(tmp_path / "result.json", result)
    assert main(["report", str(file), f"--markdown={page}"]) == 0
    lines = page.read_text().splitlines()
    assert "![Engines side by side](page.svg)" in lines
    assert "| engine | verdict | output tok/s (process time)" in page.read_text()
    bimodal, uniform = (line for line in lines if line.startswith("| ragged"))
    assert bimodal.endswith(f"| {2 * samples.SLOTS} | 31 % | more slots than asked |"), bimodal
    assert uniform.split(" | ")[1:] == ["INVALID", *["-"] * 6, "- |"]
    assert "* ragged: a token too few" in lines
    assert ElementTree.parse(tmp_path / "page.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("workloads", [["uniform"], ["uniform", "bimodal", "short_queue"]])
def test_a_picture_has_a_panel_for_each_workload_and_no_other(workloads: list[str]) -> None:
    from matplotlib.figure import Figure

    from batchproof.report.field_chart import field_chart

    chart = field_chart(samples.made(workloads=workloads), {"static": 0, "ragged": 1})
    assert chart is not None
    figure = Figure()
    chart.draw(figure)
    assert [axes.get_title().partition(",")[0] for axes in figure.axes if axes.axison] == workloads


@pytest.mark.parametrize(
    ("count", "name", "words"),
    [
        (2, "page.md", "is made of one benchmark file"),
        (1, "page.html", "must name a .md file in a folder that exists"),
        (1, "gone/page.md", "must name a .md file in a folder that exists"),
    ],
)
def test_a_page_of_tables_that_cannot_be_made_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, name: str, words: str
) -> None:
    made = samples.made(workloads=["bimodal"])
    files = [str(samples.saved(tmp_path / f"{index}.json", made)) for index in range(count)]
    assert main(["report", *files, f"--markdown={tmp_path / name}"]) == 2
    assert words in capsys.readouterr().err


def test_the_page_shows_the_clocks_where_they_are_known() -> None:
    result = samples.made()
    source = Source(Path("gpu.json"), Kind.BENCHMARK, result)
    assert not any("clocks" in fact.name for fact in origin(source).facts)
    result["header"]["device"]["clocks"] = {"clocks.sm": "1755 MHz", "power.limit": "700.00 W"}
    clocks = Fact("clocks, when the run began", "clocks.sm 1755 MHz, power.limit 700.00 W")
    assert clocks in origin(source).facts
