"""`batchproof site`: every link leads somewhere, nothing is fetched, no file is published unasked."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from posixpath import dirname, normpath

import pytest

from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.records.verdict import VERDICT
from batchproof.requirements.promises import Promise
from batchproof.site.history import engines_of
from batchproof.site.inputs import InputFile, VerdictFile, read_inputs
from batchproof.site.pages import pages
from tests.selftest.bench import samples


def attributes(page: str, name: str) -> list[str]:
    return [unescape(value) for value in re.findall(rf' {name}="([^"]*)"', page)]


RESULTS = ROOT / "results"
CTRANSLATE2 = RESULTS / "engines" / "ctranslate2-4.8.5"
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def site() -> Files:
    benchmarks = ("2026-11-23-cpu-released-tiny.json", "2026-11-23-cpu-before.json")
    names = ("engines", *benchmarks)
    return pages(read_inputs([RESULTS / name for name in names]))


def test_all_that_was_measured_is_still_read() -> None:
    benchmarks = {path.name for path in RESULTS.glob("2*.json")} - {"2026-11-22-paged-steps.json"}
    assert {each.path.name for each in read_inputs([RESULTS]).benchmarks} >= benchmarks


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A verdict with its failures, in a folder of verdicts."""
    return shutil.copytree(CTRANSLATE2, tmp_path / "engines" / "ctranslate2") / "verdict.json"


def test_every_link_leads_to_a_file_and_an_anchor_and_nothing_is_fetched(site: Files) -> None:
    texts = {name: text.decode() for name, text in site.items() if name.endswith(".html")}
    ids = {name: attributes(text, "id") for name, text in texts.items()}
    links = [(name, href) for name, text in texts.items() for href in attributes(text, "href")]
    assert len(links) > 500
    for name, href in links:
        if not href.startswith(("https://", "data:,")):
            target, _, anchor = href.partition("#")
            path = normpath(f"{dirname(name)}/{target}").lstrip("/") if target else name
            assert path in site, f"{name}: {href}"
            assert not anchor or anchor in ids[path], f"{name}: {href}"
    for name, text in texts.items():
        assert "<script" not in text
        assert 'src="' not in text
        assert text.count("<link") == 2  # the style, and an icon that is empty
        assert len(ids[name]) == len(set(ids[name]))
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
    verdict = VERDICT.read(judged)
    group, *_ = verdict.groups
    assert group.failure is not None
    assert group.issue is not None
    threads, scripts = (
        ("javascript:alert(1)", "https://a/<b>"),
        ("../secret.py", "reproductions/../x.py"),
    )
    issue = replace(group.issue, threads=threads, scripts=scripts, cause="<script>")
    failure = replace(group.failure, replay="../../secret.json")
    groups = (replace(group, issue=issue, failure=failure),)
    VERDICT.write(replace(verdict, groups=groups, unshown=(issue,)), judged)
    files = pages(read_inputs([judged]))
    assert not any(b"a secret" in content for content in files.values())
    (page,) = (files[name].decode() for name in files if re.fullmatch("verdicts/.*index.html", name))
    assert "<script" not in page
    assert 'href="javascript' not in page
    assert "https://a/&lt;b&gt;" in page
    assert "There is no failure file" in page


def test_a_benchmark_file_is_the_table_that_its_run_printed_and_names_are_escaped(
    tmp_path: Path,
) -> None:
    name = "_my<b>.mod:$x^2$&co"
    result = samples.made(workloads=["bimodal"], engines=["static", "ragged", name])
    rows = result["comparisons"][0]["rows"]
    rows[0].update(verdict="INVALID", reason="<one> token too few")
    del rows[1]["cores"]  # as before it was measured
    path = samples.saved(tmp_path / "b.json", result)
    page = unescape(pages(read_inputs([path]))["benchmarks.html"].decode())
    lines = {line.split()[0]: line.split() for line in page.splitlines() if "VALID " in line}
    assert lines["static"][1:] == ["INVALID", *["-"] * 7]
    assert lines["ragged"][-4] == "-", "what is not known is never nought"
    assert lines[name][-4] == "0.97"
    assert "static INVALID: <one> token too few" in page
    assert "machine</dt>\n<dd>2 cores of Some CPU at 2.0 GHz" in page
    assert b"<b>" not in pages(read_inputs([path]))["benchmarks.html"]
    del rows[2]["metrics"]["output_throughput"]
    with pytest.raises(UsageError, match=r"b.json' is damaged, for it ends in KeyError"):
        pages(read_inputs([samples.saved(path, result)]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'{{"schema": "{VERDICT.schema}"}}', "verdict.json' is damaged: it has no 'title'"),
        ('{"schema": "elsewhere"}', "verdict.json' is no file that a site shows: verdicts"),
    ],
)
def test_a_file_that_cannot_be_shown_is_named(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        read_inputs([tmp_path / "verdict.json"])
