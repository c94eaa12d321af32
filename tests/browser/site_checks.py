"""The site of `results/` in a real browser, on request, since nothing else here needs Chromium:

    pytest tests/browser/site_checks.py --basetemp=/tmp/site-checks

The screenshots lie below `--basetemp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.places import ROOT
from tests.browser.chromium import Chromium

WIDTHS = (360, 1280, 1920)
PAGES = (
    "index.html",
    "speed.html",
    "built_in.html",
    "engines/ctranslate2.html",
    "verdicts/ctranslate2-4.8.5/index.html",
)
# What is wider than its box and cannot be scrolled with the keyboard.
UNREACHABLE = """[...document.querySelectorAll("main *")].filter(each =>
    each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX == "auto"
    && each.tabIndex < 0).map(each => each.outerHTML.slice(0, 99))"""
# Words with less than the contrast of WCAG 2.2 to what is behind them. Chromium computes `rgb(r, g, b)`
# with up to 255, and `color(srgb r g b)` with up to 1 for mixed colours.
FAINT = """(() => {
    const parts = text => {
        const [r, g, b, a = 1] = text.match(/[\\d.e-]+/g).map(Number);
        return [r, g, b].map(v => text.startsWith("rgb") ? v / 255 : v).concat(a);
    };
    const behind = each => {
        const own = parts(getComputedStyle(each).backgroundColor);
        return own[3] > 0 || !each.parentElement ? own : behind(each.parentElement);
    };
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const words = each => [...each.childNodes].some(node => node.nodeType == 3 && node.data.trim());
    const contrast = each => {
        const lights = [parts(getComputedStyle(each).color), behind(each)].map(light);
        return (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    };
    return [...document.querySelectorAll("body *")]
        .filter(each => words(each) && each.checkVisibility() && contrast(each) < 4.5)
        .map(each => each.outerHTML.slice(0, 99));
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert main(["site", str(folder), str(ROOT / "results")]) == 0
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_can_be_read(
    page: str, width: int, is_dark: bool, site: Path, browser: Chromium, tmp_path: Path
) -> None:
    browser.open((site / page).as_uri(), width, is_dark)
    browser.screenshot(tmp_path / "page.png")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == is_dark
    assert browser.evaluate(UNREACHABLE) == []
    assert browser.evaluate(FAINT) == []
    own = f"{site.as_uri()}/"
    assert [each for each in browser.requests if not each.startswith((own, "data:,"))] == []


def test_the_checks_see_what_is_faint_and_what_no_key_reaches(site: Path, browser: Chromium) -> None:
    browser.open((site / "index.html").as_uri(), 360)
    browser.evaluate("document.querySelector('h1').style.color = '#999'")
    browser.evaluate("document.querySelector('.matrix').removeAttribute('tabindex')")
    assert [each[:3] for each in browser.evaluate(FAINT)] == ["<h1"]
    assert len(browser.evaluate(UNREACHABLE)) == 1


def test_the_first_column_stays_while_the_matrix_is_scrolled(site: Path, browser: Chromium) -> None:
    browser.open((site / "index.html").as_uri(), 360)
    left = "document.querySelector('.matrix tbody th').getBoundingClientRect().left"
    before = browser.evaluate(left)
    browser.evaluate("document.querySelector('.matrix').scrollLeft = 300")
    assert browser.evaluate("document.querySelector('.matrix').scrollLeft") == 300
    assert browser.evaluate(left) == before


def test_the_tab_key_reaches_the_content_first_and_then_cells(site: Path, browser: Chromium) -> None:
    browser.open((site / "index.html").as_uri(), 1280)
    reached = []
    for _ in range(30):
        for kind in ("rawKeyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.evaluate("document.activeElement.textContent.trim()"))
    assert reached[0] == "Skip to the content"
    assert "P20 invariance" in reached
    assert "broken" in reached
