"""Sphinx extension: the directive `{promises}` lists the promises with their rules, tests and bug
reports, made of the code when the site is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchproof.findings.finding import Rule
from batchproof.places import SUITE
from batchproof.requirements.promises import Promise
from batchproof.run.registry import faults

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

TEST = re.compile(r"pytest\.mark\.promise\((.*?)\)|^def test_(\w+)", re.MULTILINE)


def promises() -> Iterator[str]:
    """Yields each promise with the rules that find it broken, its tests, and the bugs behind it."""
    tests = [
        each for path in sorted(SUITE.glob("test_*.py")) for each in _tests(path.read_text("utf-8"))
    ]
    planted = list(faults().values())
    for promise in Promise:
        threads = sorted({each.thread for each in planted if each.promise is promise})
        yield f"## {promise}\n\n> {promise.sentence}"
        rules = [each for each in Rule if each.promise is promise]
        yield "\n".join(f"* rule `{each.id}`: `{each.words[0]}`" for each in rules)
        yield "\n".join(f"* test: {name}" for names, name in tests if f'"{promise.id}"' in names)
        yield f"Planted faults are modelled on {', '.join(threads) or 'no public report'}."


def _tests(source: str) -> Iterator[tuple[str, str]]:
    """Yields promises and name of each test of a module; a mark holds up to the next one."""
    marked = ""
    for names, test in TEST.findall(source):
        marked = names or marked
        if test:
            yield marked, test.replace("_", " ")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive, which is parsed as Markdown."""
    from sphinx.util.docutils import SphinxDirective  # noqa: PLC0415 (only where the site is built)

    class Promises(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            self.env.note_reread()  # the code may have changed
            return self.parse_text_to_nodes("\n\n".join(promises()), allow_section_headings=True)

    app.add_directive("promises", Promises)
    return {"parallel_read_safe": True}
