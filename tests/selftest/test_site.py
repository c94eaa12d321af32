"""`batchproof site`: every link leads somewhere, nothing is fetched, no file is published unasked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, normpath
from xml.etree import ElementTree

import pytest

from batchproof.__main__ import main
from batchproof.errors import UsageError
from batchproof.figures import THEME
from batchproof.places import ROOT
from batchproof.records.table import CONFORMANCE, PromiseCell
from batchproof.records.verdict import VERDICT, EngineVerdict
from batchproof.requirements.promises import Promise
from batchproof.site.folder import write_site
from batchproof.site.history import engines_of, version_key
from batchproof.site.inputs import InputFile, VerdictFile, read_inputs
from batchproof.site.pages import pages
from tests.selftest.bench import samples
from tests.selftest.html_page import Html

RESULTS = ROOT / "results"
CTRANSLATE2 = RESULTS / "engines" / "ctranslate2-4.8.5"
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def site() -> Files:
    names = ("engines", "conformance.json", "invariance.json", "2026-11-23-cpu-released-tiny.json")
    return pages(read_inputs([RESULTS / name for name in names], Path("none")))


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A verdict with its failures, in a folder of verdicts."""
    return shutil.copytree(CTRANSLATE2, tmp_path / "engines" / "ctranslate2") / "verdict.json"


@pytest.fixture(scope="module")
def parsed(site: Files) -> dict[str, Html]:
    return {name: Html(content.decode()) for name, content in site.items() if name.endswith(".html")}


def changed(path: Path, **changes: object) -> EngineVerdict:
    verdict = replace(VERDICT.read(path), **changes)  # type: ignore[arg-type]
    VERDICT.write(verdict, path)
    return verdict


def page_of(path: Path) -> str:
    files = pages(read_inputs([path], Path("none")))
    (name,) = (each for each in files if each.startswith("verdicts/") and each.endswith("index.html"))
    return files[name].decode()


def test_every_link_leads_to_a_file_of_the_site_and_to_an_anchor(
    site: Files, parsed: dict[str, Html]
) -> None:
    ids = {name: set(page.all("id")) for name, page in parsed.items()}
    links = [(name, href) for name, page in parsed.items() for href in page.all("href")]
    assert len(links) > 500
    for name, href in links:
        if not href.startswith(("https://", "data:,")):
            target, _, anchor = href.partition("#")
            path = normpath(f"{dirname(name)}/{target}").lstrip("/") if target else name
            assert path in site, f"{name}: {href}"
            assert not anchor or anchor in ids[path], f"{name}: {href}"


def test_no_page_has_a_script_or_fetches_anything_but_its_style(
    site: Files, parsed: dict[str, Html]
) -> None:
    for name, page in parsed.items():
        text = site[name].decode()
        assert "<script" not in text
        assert 'src="' not in text
        assert text.count("<link") == 2  # the style, and an icon that is empty
        assert len(set(page.all("id"))) == len(page.all("id"))
    style = site["site.css"].decode()
    assert "url(" not in style
    assert "@import" not in style


def test_the_matrix_has_a_row_for_each_verdict_and_a_link_in_each_cell_that_is_not_held(
    site: Files,
) -> None:
    matrix, _, _ = site["index.html"].decode().partition("</table>")
    head, *rows = matrix.split('<th scope="row">')
    assert head.count('<th scope="col">') == 1 + len(Promise)
    assert len(rows) == len(list((RESULTS / "engines").glob("*/verdict.json")))
    for row in rows:
        cells = row.split("<td")[1:]
        assert len(cells) == len(Promise)
        for cell in cells:
            has_words = ">held<" in cell or "–" in cell
            assert has_words != any(
                f"#{place}" in cell for place in ("finding-", "not-tested", "promises")
            )


def test_the_page_of_a_verdict_shows_what_broke_and_hands_on_failures_and_scripts(site: Files) -> None:
    page = site["verdicts/ctranslate2-4.8.5/index.html"].decode()
    for group in VERDICT.read(CTRANSLATE2 / "verdict.json").groups:
        assert group.failure is not None
        assert group.issue is not None
        assert f'href="{group.failure.replay}"' in page
        for each in (group.title, *group.issue.scripts, group.issue.cause.partition("`")[0]):
            assert each.replace("'", "&#39;") in page
    names = {path.name for path in (CTRANSLATE2 / "failures").iterdir()}
    assert {Path(each).name for each in site if "ctranslate2-4.8.5/failures/" in each} == names


def test_the_same_files_give_the_same_bytes_and_old_pages_go(judged: Path, tmp_path: Path) -> None:
    target = tmp_path / "engines" / "site"
    arguments = ["site", str(target), str(tmp_path / "engines")]
    assert main(arguments) == 0
    first = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    (target / "CNAME").write_text("mine")
    assert main(arguments) == 0  # its own pages are not among what it reads
    assert {path: path.read_bytes() for path in first} == first
    changed(judged, title="another 1.0", release="another 1.0")
    assert main(arguments) == 0
    assert [path.name for path in (target / "verdicts").iterdir()] == ["another-1.0"]
    assert (target / "CNAME").read_text() == "mine"


def test_versions_are_sorted_as_their_authors_mean_them() -> None:
    versions = ["4.8", "4.8.5.dev3", "4.8.5rc1", "4.8.5", "4.8.5.post1", "4.10", "2026.4.1.0"]
    assert all(version_key(a) < version_key(b) for a, b in pairwise(versions))


def test_the_newest_release_is_shown_in_each_configuration_and_pages_keep_their_names() -> None:
    verdict = VERDICT.read(CTRANSLATE2 / "verdict.json")

    def file(version: str, options: str = "", is_complete: bool = True, day: int = 1) -> VerdictFile:
        release = f"ctranslate2 {version}"
        made = replace(verdict.made, date=f"2026-12-{day:02}")
        title = f"{release}, {options}" if options else release
        new = replace(verdict, title=title, release=release, is_complete=is_complete, made=made)
        return InputFile(Path("verdict.json"), new, {})

    files = [
        file("4.9", day=2),
        file("4.10", day=3),
        file("4.10", day=4),
        file("4.10", "a=b", day=1),
        file("4.11", is_complete=False, day=9),
    ]
    (engine,) = engines_of(files)
    assert engine.product == "ctranslate2"
    newest = [(each.version, each.configuration, each.date) for each in engine.newest]
    assert newest == [("4.10", "", "2026-12-04"), ("4.10", "a=b", "2026-12-01")]
    before = {each.verdict.title: each.page for each in engine.judged if each.date < "2026-12-04"}
    (fewer,) = engines_of(files[:2])
    assert {each.verdict.title: each.page for each in fewer.judged}.items() <= before.items()


def test_a_verdict_from_elsewhere_publishes_no_other_file_and_no_markup(judged: Path) -> None:
    outside = judged.parents[2] / "secret"
    for suffix in (".py", ".json"):
        outside.with_suffix(suffix).write_text("a secret")
    group, *_ = VERDICT.read(judged).groups
    assert group.failure is not None
    assert group.issue is not None
    threads, scripts = (
        ("javascript:alert(1)", "https://a/<b>"),
        ("../secret.py", "reproductions/../x.py"),
    )
    issue = replace(group.issue, threads=threads, scripts=scripts, cause="<script>")
    failure = replace(group.failure, replay="../../secret.json")
    changed(judged, groups=(replace(group, issue=issue, failure=failure),), unshown=(issue,))
    files = pages(read_inputs([judged], Path("none")))
    assert not any(b"a secret" in content for content in files.values())
    page = page_of(judged)
    assert "<script" not in page
    assert 'href="javascript' not in page
    assert "https://a/&lt;b&gt;" in page
    assert "There is no failure file" in page


def test_a_verdict_of_a_later_suite_or_without_a_release_is_shown(judged: Path) -> None:
    verdict = VERDICT.read(judged)
    promises = {**verdict.promises, "P99": verdict.promises["P1"]}
    changed(judged, title="mine.py:Engine", release=None, promises=promises, broken=("P1", "P99"))
    page = page_of(judged)
    assert "<b>P99</b>" in page
    assert "breaks P1 (parity), P99." in page
    judged.write_text(json.dumps(json.loads(judged.read_text()) | {"some_later_field": 1}))
    assert page_of(judged) == page


def benchmark_file(folder: Path, **of_ragged: object) -> Path:
    """A file of two workloads; in the first, the row of `ragged` is changed."""
    result = samples.made(workloads=["bimodal", "uniform"], engines=["static", "ragged"])
    result["comparisons"][0]["rows"][1].update(of_ragged)
    return samples.saved(folder / "b.json", result)


@pytest.mark.parametrize("verdict", ["UNVERIFIED", "INVALID"])
def test_only_rows_whose_answers_were_right_have_figures(tmp_path: Path, verdict: str) -> None:
    path = benchmark_file(tmp_path, verdict=verdict, reason="<one> token too few")
    page = pages(read_inputs([path], Path("none")))["benchmarks.html"].decode()
    _, *rows = page.split('<th scope="row">')
    figures = {each.partition("<")[0]: "<small>" in each for each in rows[:2]}
    assert figures == {"static": True, "ragged": False}
    assert f"{verdict}: &lt;one&gt; token too few" in page


def test_a_benchmark_without_a_figure_of_its_kind_is_damaged(tmp_path: Path) -> None:
    result = samples.made(workloads=["bimodal"])
    del result["comparisons"][0]["rows"][0]["metrics"]["num_output_tokens"]
    with pytest.raises(UsageError, match=r"b.json' is damaged, for it ends in KeyError"):
        pages(read_inputs([samples.saved(tmp_path / "b.json", result)], Path("none")))


def test_what_is_not_defined_is_a_dash_and_never_nought(tmp_path: Path) -> None:
    result = samples.made(workloads=["bimodal"])
    row = result["comparisons"][0]["rows"][1]
    row["metrics"].update({key: None for key in row["metrics"] if key.endswith("_ms")})
    row["schedule"] = row["num_at_once"] = row["cores"] = None
    path = samples.saved(tmp_path / "b.json", result)
    assert main(["site", "--markdown", str(path)]) == 0
    (line,) = (each for each in path.with_suffix(".md").read_text().splitlines() if "| ragged" in each)
    assert line.split(" | ")[3:8] == ["-"] * 5


def test_a_benchmark_file_is_a_page_of_tables_with_two_pictures(tmp_path: Path) -> None:
    path = benchmark_file(tmp_path, num_at_once=2 * samples.SLOTS)
    assert main(["site", "--markdown", str(path)]) == 0
    page = path.with_suffix(".md").read_text()
    assert "| engine | verdict | output tok/s (process time)" in page
    assert "| more slots than asked |" in page
    for name in ("b.svg", "b-ratios.svg"):
        words = {text.text for text in ElementTree.parse(tmp_path / name).iter() if text.text}
        assert f"]({name})" in page
        assert any("2 cores of Some CPU" in each for each in words)


def test_names_that_mean_something_to_html_or_matplotlib_are_shown_as_they_are(tmp_path: Path) -> None:
    name = "_my<b>.mod:$x^2$&co"
    result = samples.made(workloads=["bimodal"], engines=["static", name], speeds={})
    path = samples.saved(tmp_path / "b.json", result)
    page = pages(read_inputs([path], Path("none")))["benchmarks.html"].decode()
    assert sum(name == each.strip() for each in Html(page).words) == 2  # in the chart and in the table
    assert "<b>.mod" not in page


@pytest.mark.parametrize(("failed", "words"), [(0, "PASS"), (2, "FAIL")])
def test_a_conformance_table_is_shown_cell_by_cell(tmp_path: Path, failed: int, words: str) -> None:
    path = shutil.copy(RESULTS / "conformance.json", tmp_path / "c.json")
    table = CONFORMANCE.read(path)
    cells = {each: dict(table.cells[each]) for each in table.engines}
    cells["static"]["P1"] = PromiseCell("the cell", passed=3, failed=failed)
    CONFORMANCE.write(replace(table, cells=cells), path)
    page = pages(read_inputs([path], Path("none")))["conformance.html"].decode()
    assert f'title="3 tests passed, {failed} failed">the cell</td>' in page
    assert f">{words}</span>" in page


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema": "batchproof.verdict/99"}', f"reads up to '{VERDICT.schema}'"),
        (f'{{"schema": "{VERDICT.schema}"}}', "is damaged: it has no 'title'"),
        ('{"schema": "elsewhere"}', "'verdict.json' is no file that a site shows: verdicts"),
        ("", "'verdict.json' is no result file: it is not JSON"),
        ('{"schema": "batchproof.benchmark/99"}', "reads up to"),
    ],
)
def test_a_file_that_cannot_be_shown_is_one_sentence_that_names_it(
    content: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("verdict.json").write_text(content)
    assert main(["site", "new", "verdict.json"]) == 2
    error = capsys.readouterr().err
    assert "verdict.json'" in error
    assert words in error
    assert error.count("\n") == 1
    assert not Path("new").exists()


def test_a_folder_with_nothing_to_show_and_a_foreign_page_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package.json").write_text("{}")
    assert main(["site", str(tmp_path / "new"), str(tmp_path)]) == 2
    assert f"no *.json below '{tmp_path}' that a site shows: verdicts" in capsys.readouterr().err
    (tmp_path / "index.html").write_text("mine")
    assert main(["site", str(tmp_path), str(CTRANSLATE2)]) == 2
    assert f"'{tmp_path / 'index.html'}' is not of an earlier site" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "mine"
    assert main(["site", str(tmp_path / "package.json"), str(CTRANSLATE2)]) == 2
    assert main(["site"]) == 2
    assert "name the folder DIR of the site" in capsys.readouterr().err
    assert main(["site", "--markdown", str(CTRANSLATE2 / "verdict.json")]) == 2
    assert "is no benchmark file" in capsys.readouterr().err


def test_a_list_of_files_that_names_others_deletes_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.json").write_text(
        json.dumps({"schema": "batchproof.site/1", "files": ["../kept"]})
    )
    write_site(tmp_path / "site", {"index.html": b""})
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_all_words_are_readable_on_what_is_behind_them(theme: int) -> None:
    """WCAG 2.2 asks for a contrast of 4.5. The cells of the matrix are tinted by 11 %."""
    colours = {name: rgb(shades[theme]) for name, shades in THEME.items()}
    for name in ("ink", "faint", "good", "warn", "bad"):
        for behind in ("page", "paper", "idle"):
            assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)
    for name in ("warn", "bad"):
        tinted = [0.11 * a + 0.89 * b for a, b in zip(colours[name], colours["paper"], strict=True)]
        assert contrast(colours[name], tinted) >= 4.5, name


def rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def contrast(one: list[float], other: list[float]) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""

    def luminance(colour: list[float]) -> float:
        parts = [
            each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in colour
        ]
        return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    dark, bright = sorted(map(luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)
