"""One engine in several configurations, as `judge matrix` and `judge releases` write it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance
from batchproof.records.verdict import PromiseResult, RequirementOutcome, SuiteStamp

# The folder of all, below that of verdicts; record and page in the folder of each.
MATRICES, MATRIX_FILE, PAGE = "matrices", "matrix.json", "README.md"
BREAKS: tuple[RequirementOutcome, ...] = ("failed", "known")
Settings = Mapping[str, str]  # axis -> the name of one of its values


@dataclass(frozen=True)
class CellRecord:
    """A configuration that was judged. `why_not`: it could not be, or not in full; then there is a page
    only if something broke or the run did not come to its end."""

    settings: Settings
    folder: str  # below that of the matrix
    engine: str  # as the command line names it
    options: tuple[str, ...]  # of pytest
    minutes: float
    num_requests: int = 0
    promises: Mapping[str, PromiseResult] = field(default_factory=dict)
    # requirement, without its model -> what is known of its failure
    failed: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True)
class Found:
    """What a search for what decides has found: the requirement breaks `at` these settings and holds
    once one of the axes in `decisive` has the value that is given there. With the values of `unasked`
    it cannot be asked. `decisive` is empty if it does not do so alone; `note` says why."""

    at: Settings
    decisive: Settings
    unasked: Settings = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Difference(Found):
    """What decides for requirements that break in the same cells and hold in others. The first of them
    was asked alone, of a known finding several together, wherever the search needed it."""

    requirements: tuple[str, ...]
    what: str  # what is known of the failure, or the promise


@dataclass(frozen=True)
class MatrixRecord:
    """All cells of one engine. `outcomes` are those of each requirement that failed in a cell, in the
    order of the cells. Of an ordered axis, such as releases, neighbours were compared. `num_missing`:
    cells that the run has not come to; `left_out`: values of axes that the machine cannot have, each
    with the reason."""

    engine: str
    axes: Mapping[str, tuple[str, ...]]  # the first value is the base
    is_ordered: bool
    made: Provenance
    suite: SuiteStamp
    cells: tuple[CellRecord, ...] = ()
    outcomes: Mapping[str, tuple[RequirementOutcome, ...]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    num_probes: int = 0  # runs of requirements alone
    is_complete: bool = False
    findings: tuple[str, ...] = ()  # what is known of failures, without what names a promise alone
    num_missing: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def base(self) -> Settings:
        return {name: values[0] for name, values in self.axes.items()}


def is_told(signs: Sequence[RequirementOutcome]) -> bool:
    """Returns whether a requirement broke in one cell and held in another."""
    return "held" in signs and any(each in BREAKS for each in signs)


Row = tuple[str, tuple[RequirementOutcome, ...]]  # what broke, and its outcomes


def rows_of(record: MatrixRecord) -> dict[Row, list[str]]:
    """Returns the requirements of each row. A finding is one row: it breaks in a cell where one of its
    requirements does. Other failures of a promise are one row where they break in the same cells."""
    groups: dict[tuple[str, object], dict[str, tuple[RequirementOutcome, ...]]] = {}
    for name, outcomes in record.outcomes.items():
        whats = [cell.failed.get(name) for cell in record.cells]
        # All but findings is one, named by what it was first.
        other = next((what for what in whats if what and what not in record.findings), None)
        whats = [what if what in record.findings else what and other for what in whats]
        for what in dict.fromkeys(filter(None, whats)):
            signs = tuple(
                "not run" if outcome in BREAKS and each != what else outcome
                for outcome, each in zip(outcomes, whats, strict=True)
            )
            where = None if what in record.findings else signs
            groups.setdefault((what, where), {})[name] = signs
    rows: dict[Row, list[str]] = {}
    for (what, _), found in groups.items():
        merged = tuple(map(merged_outcome, zip(*found.values(), strict=True)))
        # First what breaks most often: asked together, it shows the finding soonest.
        names = sorted(
            found, key=lambda name: (-sum(each in BREAKS for each in found[name]), len(name))
        )
        rows[what, merged] = names
    return rows


def told_rows(record: MatrixRecord) -> dict[Row, list[str]]:
    """Returns what broke in some cells and held in others."""
    return {row: names for row, names in rows_of(record).items() if is_told(row[1])}


def merged_outcome(outcomes: Collection[RequirementOutcome]) -> RequirementOutcome:
    """Returns the outcome of several requirements as one: broken if one is, else held if one is."""
    best = [*BREAKS, "held"]
    return min(outcomes, key=lambda each: best.index(each) if each in best else len(best))


MATRIX = FileKind("matrix of verdicts", "batchproof.matrix", 1, MatrixRecord)
