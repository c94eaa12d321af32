"""What the suite itself is worth: planted faults caught, and honest engines left alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batchproof.report import markup, words
from batchproof.report.inputs import Source
from batchproof.report.rows import Data


@dataclass(frozen=True, slots=True)
class Tally:
    """Planted faults: how many there are, were caught, and were caught as the promise they break; and
    in how many of the catches the right cause was named."""

    num_faults: int
    num_caught: int
    num_as_declared: int
    num_right: int
    num_catches: int

    @classmethod
    def of(cls, faults: Iterable[Data]) -> Tally:
        faults = list(faults)
        caught = [fault for fault in faults if fault["home"]]
        kills = [(fault, kill) for fault in caught for kill in fault["kills"]]
        return cls(
            len(faults),
            len(caught),
            sum(any(k["broken"] == f["promise"] for k in f["kills"]) for f in caught),
            sum(kill["cause"] == fault["cause"] for fault, kill in kills),
            len(kills),
        )


def tallies(source: Source) -> dict[str, Tally]:
    """By class of fault."""
    faults = source.data["faults"].values()
    classes = dict.fromkeys(fault["class"] for fault in faults)
    return {name: Tally.of(f for f in faults if f["class"] == name) for name in classes}


def overall(source: Source) -> Tally:
    found = tallies(source).values()
    return Tally(
        sum(each.num_faults for each in found),
        sum(each.num_caught for each in found),
        sum(each.num_as_declared for each in found),
        sum(each.num_right for each in found),
        sum(each.num_catches for each in found),
    )


def faults_section(source: Source, anchor: str) -> str:
    rows = [_row(name.replace("_", " "), each) for name, each in tallies(source).items()]
    rows.append(_row("all", overall(source)))
    head = ["class", "caught", "as the promise it breaks", "right cause named", ""]
    seeds = ", ".join(map(str, source.data["seeds"]))
    about = (
        "Each fault is a small lie planted into an honest engine, modelled on a real bug; the suite "
        f"has to catch it, with each of the seeds {seeds}, and then to name its cause."
    )
    return markup.section(
        anchor,
        f"Planted faults {source.path.name}",
        markup.paragraph(markup.text(about)),
        markup.table(head, rows, "Planted faults by class"),
    )


def _row(name: str, tally: Tally) -> list[str]:
    is_all_caught = tally.num_caught == tally.num_faults
    caught = f"{tally.num_caught} of {tally.num_faults}"
    right = f"{tally.num_right} of {tally.num_catches}" if tally.num_catches else words.UNDEFINED
    return [
        markup.row_head(markup.text(name)),
        markup.cell(caught, "" if is_all_caught else "bad"),
        markup.cell(f"{tally.num_as_declared} of {tally.num_caught}"),
        markup.cell(right),
        markup.cell(_bar(tally.num_right / tally.num_catches) if tally.num_catches else ""),
    ]


def _bar(share: float) -> str:
    return markup.element("span", f'<i style="width:{100 * share:.0f}%"></i>', class_="bar")


def honest_section(source: Source, anchor: str) -> str:
    alarms = source.data["alarms"]
    about = (
        f"{num_judged(source):,} generated workloads on "
        f"{words.many(len(source.data['engines']), 'honest engine')}, some of them odd: "
        + (f"{words.many(len(alarms), 'alarm')}." if alarms else "no alarm.")
    )
    listed = markup.bullets(
        markup.text(f"{each.get('engine')} on {each.get('model')}: {each.get('test')}")
        for each in alarms
    )
    return markup.section(
        anchor,
        f"False alarms {source.path.name}",
        markup.paragraph(markup.text(about)),
        listed,
    )


def num_judged(source: Source) -> int:
    """Workloads, over all dtypes."""
    return sum(each.get("workloads", 0) for each in source.data["totals"].values())
