"""What is known of an engine that a benchmark or a grade names: the promises it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchproof.report.inputs import Source
from batchproof.report.site.history import Engine, Judged
from batchproof.report.table_values import TableCell

OTHERWISE = TableCell("other options", "none", "judged with other options")
BUILT_IN = "built_in.html"  # the page of conformance tables


class Standings:
    """Finds an engine by its text on the command line among verdicts, then in conformance tables."""

    def __init__(self, engines: Sequence[Engine], tables: Sequence[Source]) -> None:
        self._engines, self._tables = engines, tables

    def cell(self, engine: str) -> TableCell:
        """Returns a link to the newest verdict, in words; it says so if there is none."""
        judged = [each for one in self._engines for each in one.judged if each.verdict.engine == engine]
        if judged:
            return _of_verdict(max(judged, key=lambda each: each.rank))
        for number, table in enumerate(self._tables, start=1):
            if cells := table.data["cells"].get(engine):
                failed = [promise for promise, cell in cells.items() if cell.get("failed")]
                num_held = sum(bool(c.get("passed")) and not c.get("failed") for c in cells.values())
                href = f"{BUILT_IN}#section-{number}"
                return _counted(num_held, failed, (), "", href)
        name = engine.partition("?")[0]
        for one in self._engines:
            if any(each.verdict.engine.partition("?")[0] == name for each in one.judged):
                return replace(OTHERWISE, href=one.page)
        for number, table in enumerate(self._tables, start=1):
            if any(each.partition("?")[0] == name for each in table.data["cells"]):
                return replace(OTHERWISE, href=f"{BUILT_IN}#section-{number}")
        return TableCell("not judged", "none")


def _of_verdict(judged: Judged) -> TableCell:
    verdict, href = judged.verdict, f"{judged.page}/index.html"
    return _counted(len(verdict.held), verdict.broken, verdict.differing, judged.version, href)


def _counted(
    num_held: int, broken: Sequence[str], differing: Sequence[str], version: str, href: str
) -> TableCell:
    words = [f"breaks {len(broken)}"] if broken else []
    words += [f"differs in {len(differing)}"] if differing else []
    words += [f"holds {num_held}"]
    kind = "bad" if broken else "warn" if differing else "good"
    under = ", ".join(filter(None, (*words[1:], version)))
    return TableCell(words[0], kind, ", ".join((*broken, *differing)), href=href, under=under)
