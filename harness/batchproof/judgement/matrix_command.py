"""`batchproof judge matrix ENGINE`: the suite on configurations of one engine, and what decides."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from batchproof.cli import choices
from batchproof.errors import UsageError
from batchproof.judgement.axes import Axes, axes_of, base_of, cell_of, chosen, folder_name
from batchproof.judgement.cells import (
    DEFAULT_OPTIONS,
    PROCESSES,
    RUNNERS,
    CellResult,
    CellTask,
    asked_alone,
    judged,
)
from batchproof.judgement.deciding import (
    Outcomes,
    Search,
    change_between,
    run_searches,
    smallest_difference,
)
from batchproof.judgement.matrix_page import PICTURE, columns_of, matrix_page, summary_lines
from batchproof.judgement.matrix_picture import matrix_picture
from batchproof.judgement.output import RECORD, write_index
from batchproof.places import VERDICTS
from batchproof.records.file_kinds import replace_text
from batchproof.records.matrix import (
    BREAKS,
    MATRICES,
    MATRIX,
    CellRecord,
    Difference,
    MatrixRecord,
    Settings,
)
from batchproof.records.provenance import made_now
from batchproof.records.suite_stamp import suite_stamp
from batchproof.records.texts import counted, slug
from batchproof.records.verdict import VERDICT, RequirementOutcome
from batchproof.requirements.issues import DEFAULT_ISSUES, read_issues
from batchproof.run.registry import engines_module, resolve_engine

MATRIX_FILE, PAGE = "matrix.json", "README.md"
LIBRARIES = "adapters.released.libraries"
RELEASE = "release"  # the axis of `judge releases`
DECIDED = (*BREAKS, "held")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE", help="as for pytest --engine, with fixed options")
    choices.add_repeatable(
        parser,
        "--axis",
        "NAME=VALUE,VALUE",
        "an option of the engine, or one of the suite as in --axis=--dtype=float32,bfloat16, and its "
        "values, the base first; or the NAME of an axis that the engine declares; repeatable (default: "
        "all that it declares)",
    )
    choices.add_count(
        parser, "--strength", 2, "how many axes have each combination of their values in some cell"
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds what `judge matrix` and `judge releases` share."""
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help=f"arguments of pytest in one text (default: '{DEFAULT_OPTIONS}')",
    )
    choices.add_count(
        parser, "--probes", 24, "how many runs may ask requirements alone, to find what decides"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the cells that this suite has judged in full"
    )
    parser.add_argument(
        "--runner",
        choices=RUNNERS,
        default=PROCESSES,
        help="judge the cells here, or in the Ray cluster that RAY_ADDRESS names",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=DEFAULT_ISSUES,
        metavar="FILE",
        help="what is known of failures (default: results/engines/findings.yaml)",
    )
    choices.add_output(parser)
    choices.add_jobs(parser)
    parser.set_defaults(output=VERDICTS)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if no requirement breaks in any cell, else 1. Raises `UsageError`."""
    axes = axes_of(declared_axes(arguments.engine), arguments.axis or (), arguments.engine)
    for name in axes:
        for value in axes[name]:  # a wrong option is reported before the work is done
            resolve_engine(cell_of(arguments.engine, axes, {**base_of(axes), name: value}).engine)
    return judge_matrix(arguments, axes, chosen(axes, arguments.strength), f"{arguments.engine}")


def declared_axes(engine: str) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Returns the axes in the `engine.toml` of a released engine."""
    library = engines_module(LIBRARIES).LIBRARIES.get(engine.partition("?")[0])
    return library.axes if library else {}


def judge_matrix(
    arguments: argparse.Namespace,
    axes: Axes,
    wanted: Sequence[Settings],
    title: str,
    is_ordered: bool = False,
    is_halved: bool = False,
) -> int:
    """Judges the wanted settings and looks for what decides. On an ordered axis neighbours are
    compared; if it is halved, only the first and the last value are judged in full."""
    matrix = _Matrix(arguments, axes, title, is_ordered, is_halved)
    with_pages = [wanted[0], wanted[-1]] if is_halved else wanted
    try:
        for number, result in enumerate(matrix.results(with_pages), start=1):
            matrix.keep(result)
            print(_line(number, len(with_pages), result.record), file=sys.stderr, flush=True)
        matrix.decide()
        matrix.remove_others()
        matrix.is_complete = not any(each.why_not for each in matrix.cells)
    finally:  # whatever stopped it: what is done is written
        if matrix.cells:
            record = matrix.write()
            write_index(arguments.output)
    print("\n".join(summary_lines(record)))
    print(f"written: {matrix.folder / PAGE}", file=sys.stderr)
    return 1 if record.outcomes or not record.is_complete else 0


def _line(number: int, of: int, cell: CellRecord) -> str:
    found = cell.why_not or f"{counted(len(cell.failed), 'requirement')} failed"
    return f"cell {number} of {of}, {cell.folder}: {found} ({cell.minutes:.1f} min)"


class _Matrix:
    """The cells that are judged so far, and their outcomes by settings."""

    def __init__(
        self, arguments: argparse.Namespace, axes: Axes, title: str, is_ordered: bool, is_halved: bool
    ) -> None:
        self._arguments = arguments
        self._axes = axes
        self._is_ordered, self._is_halved = is_ordered, is_halved
        self._issues = read_issues(arguments.findings)
        self.folder = choices.writable(arguments.output / MATRICES / slug(title)).resolve()
        self.cells: list[CellRecord] = []
        self.outcomes: list[Outcomes] = []
        self.differences: list[Difference] = []
        self._num_probes, self._probe_s = 0, 0.0
        self.is_complete = False

    def results(self, wanted: Iterable[Settings]) -> Iterator[CellResult]:
        """Yields those that are kept from an earlier run, then each that is judged."""
        tasks = [self.task(each) for each in wanted]
        kept = [each for each in map(self._kept, tasks) if each] if self._arguments.resume else []
        names = {each.record.folder for each in kept}
        yield from kept
        yield from judged([each for each in tasks if each.folder not in names], self._arguments.runner)

    def task(self, settings: Settings) -> CellTask:
        cell = cell_of(self._arguments.engine, self._axes, settings)
        name = folder_name(settings, base_of(self._axes))
        return CellTask(cell, name, self._arguments.pytest, self._arguments.jobs, self._issues)

    def _kept(self, task: CellTask) -> CellResult | None:
        """Returns a cell of the matrix that is there, if this suite has judged it in full."""
        path = self.folder / MATRIX_FILE
        if not path.is_file():
            return None
        before = MATRIX.read(path)
        same = [
            each
            for each in before.cells
            if (each.engine, each.folder, each.why_not) == (task.cell.engine, task.folder, "")
            and list(each.options) == task.session(self.folder).options
        ]
        if before.suite != suite_stamp() or not same:
            return None
        verdict = VERDICT.read(self.folder / task.folder / RECORD)
        outcomes = {task.cell.without_model(name): each for name, each in verdict.outcomes.items()}
        return CellResult(same[0], outcomes, {})

    def keep(self, result: CellResult) -> None:
        """Writes the pages of a cell, and the matrix as far as it is. Raises `UsageError` if nothing
        could be asked in the first: an older matrix stays."""
        if not self.cells and not result.files and result.record.why_not:
            raise UsageError(
                f"{result.record.engine!r} is not judged, since no test was run: see above"
            )
        folder = self.folder / result.record.folder
        if result.files:
            shutil.rmtree(folder, ignore_errors=True)
        for name, content in result.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.cells.append(result.record)
        self.outcomes.append(result.outcomes)
        order = [self.cells.index(each) for each in sorted(self.cells, key=self._place)]
        self.cells = [self.cells[each] for each in order]
        self.outcomes = [self.outcomes[each] for each in order]
        self.write()

    def remove_others(self) -> None:
        """Removes the folders of cells that an earlier run has left."""
        kept = {each.folder for each in self.cells}
        for path in self.folder.glob(f"*/{RECORD}"):
            if path.parent.name not in kept:
                shutil.rmtree(path.parent)

    def _place(self, cell: CellRecord) -> list[int]:
        return [[*self._axes[axis]].index(value) for axis, value in cell.settings.items()]

    def decide(self) -> None:
        """Searches for what decides each set of requirements that break in the same cells."""
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for name in sorted(self._failed()):
            groups.setdefault((self._what(name), self._signs(name)), []).append(name)
        members = {min(names, key=len): names for names in groups.values()}
        searches = {
            (shown, number): search
            for shown in members
            for number, search in enumerate(self._searches(shown))
        }
        for (shown, _), found in run_searches(searches, self._ask, self._arguments.probes):
            self.differences.append(
                Difference(
                    requirements=tuple(members[shown]),
                    what=self._what(shown),
                    shown=shown,
                    at=found.at,
                    decisive=found.decisive,
                    unasked=found.unasked,
                    note=found.note,
                )
            )

    def _failed(self) -> set[str]:
        return {name for cell in self.cells for name in cell.failed}

    def _what(self, name: str) -> str:
        return next(each.failed[name] for each in self.cells if name in each.failed)

    def _signs(self, name: str) -> tuple[RequirementOutcome, ...]:
        return tuple(each.get(name, "not run") for each in self.outcomes)

    def _searches(self, name: str) -> Iterator[Search]:
        """Yields the searches for a requirement that breaks in one cell and holds in another: one to
        the base if it holds there, else between the nearest two; on an ordered axis one for each
        change."""
        signs = self._signs(name)
        told = [i for i, sign in enumerate(signs) if sign in DECIDED]
        pairs = [(i, j) for i in told for j in told if signs[i] in BREAKS and signs[j] == "held"]
        if self._is_halved and pairs:
            (axis,) = self._axes
            yield change_between(axis, [*self._axes[axis]], signs[0] in BREAKS)
        elif self._is_ordered:
            changes = [pair for pair in pairs if {*pair} in map(set, pairwise(told))]
            yield from map(self._between, changes)
        elif pairs:
            yield self._between(min(pairs, key=self._distance))

    def _between(self, pair: tuple[int, int]) -> Search:
        breaking, holding = (self.cells[each].settings for each in pair)
        return smallest_difference(breaking, holding)

    def _distance(self, pair: tuple[int, int]) -> tuple[bool, int]:
        breaking, holding = (self.cells[each].settings for each in pair)
        num_other = sum(breaking[axis] != holding[axis] for axis in breaking)
        return holding != base_of(self._axes), num_other

    def _ask(self, settings: Settings, names: Collection[str]) -> Outcomes:
        start = time.monotonic()
        try:
            return asked_alone(self.task(settings), names)
        finally:
            self._num_probes += 1
            self._probe_s += time.monotonic() - start
            print(
                f"asked {counted(len(names), 'requirement')} alone: {self.task(settings).folder} "
                f"({time.monotonic() - start:.0f} s)",
                file=sys.stderr,
                flush=True,
            )

    def write(self) -> MatrixRecord:
        """Writes record and page, and returns the record."""
        record = MatrixRecord(
            engine=self._arguments.engine,
            axes={name: tuple(values) for name, values in self._axes.items()},
            is_ordered=self._is_ordered,
            cells=tuple(self.cells),
            outcomes={name: self._signs(name) for name in sorted(self._failed())},
            differences=tuple(self.differences),
            num_probes=self._num_probes,
            probe_minutes=self._probe_s / 60,
            made=made_now(),
            suite=suite_stamp(),
            is_complete=self.is_complete,
        )
        MATRIX.write(record, self.folder / MATRIX_FILE)
        replace_text(self.folder / PAGE, matrix_page(record))
        replace_text(self.folder / PICTURE, matrix_picture(record, columns_of(record)))
        return record
