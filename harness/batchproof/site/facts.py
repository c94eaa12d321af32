"""Where a verdict comes from, and which verdicts of an engine met which finding."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.records.verdict import EngineVerdict
from batchproof.site.findings import chip_of
from batchproof.site.history import Engine, Judged
from batchproof.site.tables import Fact, Row, Table, TableCell

NEVER = TableCell("not met", "none")


def verdict_facts(verdict: EngineVerdict) -> Iterator[Fact]:
    """Yields what was judged, when, on what, and how to do it again."""
    made = verdict.made
    yield Fact("release", verdict.release or "not stated")
    yield Fact("judged", made.date)
    yield Fact("precision", verdict.precision or "that of the model")
    yield Fact("machine", str(made.machine))
    yield Fact("versions", ", ".join(f"{name} {number}" for name, number in made.versions.items()))
    if asked := verdict.requirement_set:
        yield Fact("requirements", f"{asked.name}, digest {asked.digest}")
    if suite := verdict.suite:
        yield Fact("suite", f"{suite.version}, digest {suite.digest}")
    yield Fact("commit of the suite", made.commit)
    yield Fact("to judge it again", made.command, is_code=True)
    if verdict.suite_command != made.command:
        yield Fact("the suite alone", verdict.suite_command, is_code=True)
    yield from (Fact("work of", each) for each in made.sittings)


def findings_by_verdict(engine: Engine) -> Table:
    """Returns which finding was met in which verdict, the newest verdict first."""
    kinds = {group.title: chip_of(group) for each in engine.judged for group in each.verdict.groups}
    columns = [_met(each) for each in engine.judged]
    rows = tuple(
        Row(title, (TableCell("", chip=chip), *(each.get(title, NEVER) for each in columns)))
        for title, chip in kinds.items()
    )
    heads = (", ".join(filter(None, (e.version, e.configuration, e.date))) for e in engine.judged)
    return Table(f"Findings in {engine.product}", ("finding", "kind", *heads), rows)


def _met(judged: Judged) -> dict[str, TableCell]:
    known = {each.title: TableCell("known, not met", "none") for each in judged.verdict.unshown}
    return known | {
        group.title: TableCell(
            f"{group.num_tests} test{'s' * (group.num_tests > 1)}",
            title=", ".join(group.promises),
            href=f"{judged.page}/index.html#finding-{number}",
        )
        for number, group in enumerate(judged.verdict.groups, start=1)
    }
