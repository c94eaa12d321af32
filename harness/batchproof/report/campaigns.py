"""How well the suite itself judges: planted faults caught, honest engines passed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batchproof.report import words
from batchproof.report.inputs import Source
from batchproof.report.rows import Data
from batchproof.report.table_values import Row, Table, TableCell


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of planted faults: all, caught, caught as the promise they break, and catches with the
    right cause.
    """

    num_faults: int
    num_caught: int
    num_as_declared: int
    num_right: int
    num_catches: int

    @classmethod
    def of(cls, planted: Iterable[Data]) -> Tally:
        """Counts the faults as they stand in a kill table."""
        planted = list(planted)
        caught = [fault for fault in planted if fault["home"]]
        kills = [(fault, kill) for fault in caught for kill in fault["kills"]]
        return cls(
            len(planted),
            len(caught),
            sum(any(k["broken"] == f["promise"] for k in f["kills"]) for f in caught),
            sum(kill["cause"] == fault["cause"] for fault, kill in kills),
            len(kills),
        )


def tallies(source: Source) -> dict[str, Tally]:
    """Returns one tally for each class of fault."""
    planted = source.data["faults"].values()
    classes = dict.fromkeys(fault["class"] for fault in planted)
    return {name: Tally.of(f for f in planted if f["class"] == name) for name in classes}


def overall(source: Source) -> Tally:
    return Tally.of(source.data["faults"].values())


@dataclass(frozen=True, slots=True)
class Faults:
    """The section of a kill table."""

    seeds: str
    table: Table


def faults(source: Source) -> Faults:
    rows = [_row(name.replace("_", " "), each) for name, each in tallies(source).items()]
    rows.append(_row("all", overall(source)))
    head = ("class", "caught", "as the promise it breaks", "right cause named", "")
    seeds = ", ".join(map(str, source.data["seeds"]))
    return Faults(seeds, Table("Planted faults by class", head, tuple(rows)))


def _row(name: str, tally: Tally) -> Row:
    is_all_caught = tally.num_caught == tally.num_faults
    share = 100 * tally.num_right / tally.num_catches if tally.num_catches else None
    right = f"{tally.num_right} of {tally.num_catches}" if tally.num_catches else words.UNDEFINED
    return Row(
        name,
        (
            TableCell(f"{tally.num_caught} of {tally.num_faults}", "" if is_all_caught else "bad"),
            TableCell(f"{tally.num_as_declared} of {tally.num_caught}"),
            TableCell(right),
            TableCell("", bar=share),
        ),
    )


@dataclass(frozen=True, slots=True)
class Honest:
    """The section of a campaign against false alarms."""

    about: str
    alarms: tuple[str, ...]


def honest(source: Source) -> Honest:
    alarms = source.data["alarms"]
    about = (
        f"{num_judged(source):,} generated workloads on "
        f"{words.many(len(source.data['engines']), 'honest engine')}, some of them odd: "
        + (f"{words.many(len(alarms), 'alarm')}." if alarms else "no alarm.")
    )
    listed = (f"{each.get('engine')} on {each.get('model')}: {each.get('test')}" for each in alarms)
    return Honest(about, tuple(listed))


def num_judged(source: Source) -> int:
    return sum(each.get("workloads", 0) for each in source.data["totals"].values())
