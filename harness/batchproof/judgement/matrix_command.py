"""`batchproof judge matrix ENGINE`: the suite on configurations of one engine, and what decides."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from batchproof.cli import choices
from batchproof.errors import UsageError
from batchproof.judgement import cells, suite_session
from batchproof.judgement.axes import Axes, axes_of, base_of, cell_of, chosen, folder_name
from batchproof.judgement.cells import (
    DEFAULT_OPTIONS,
    CellResult,
    CellTask,
    asked_alone,
    outcomes_in,
)
from batchproof.judgement.deciding import (
    Outcomes,
    Search,
    change_between,
    run_searches,
    smallest_difference,
)
from batchproof.judgement.matrix_page import matrix_page, summary_lines
from batchproof.judgement.output import RECORD, write_index
from batchproof.judgement.possible import available, require_options, require_values
from batchproof.records.file_kinds import replace_text
from batchproof.records.matrix import (
    BREAKS,
    MATRICES,
    MATRIX,
    MATRIX_FILE,
    PAGE,
    CellRecord,
    Difference,
    MatrixRecord,
    Settings,
    merged_outcome,
    told_rows,
)
from batchproof.records.provenance import made_now
from batchproof.records.suite_stamp import suite_stamp
from batchproof.records.texts import counted, slug
from batchproof.records.verdict import VERDICT, RequirementOutcome
from batchproof.requirements.issues import read_issues
from batchproof.run.registry import resolve_engine

LIBRARIES = "adapters.released.libraries"
RELEASE = "release"  # the axis of `judge releases`
DECIDED = (*BREAKS, "held")
MOST_TOGETHER = 20  # requirements of a finding that are asked in one run: some need a history


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
    suite_session.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if no requirement breaks in any cell, else 1. Raises `UsageError`."""
    declared: Axes = resolve_engine(arguments.engine).axes
    left_out: Sequence[str] = ()
    if not arguments.axis:
        declared, left_out = available(declared)
    axes = axes_of(declared, arguments.axis or (), arguments.engine)
    require_options(arguments, axes)
    wanted = chosen(axes)
    require_values(arguments, axes, declared, wanted)
    return judge_matrix(arguments, axes, wanted, arguments.engine, left_out=left_out)


def judge_matrix(
    arguments: argparse.Namespace,
    axes: Axes,
    wanted: Sequence[Settings],
    title: str,
    is_ordered: bool = False,
    is_halved: bool = False,
    left_out: Sequence[str] = (),
) -> int:
    """Judges the wanted settings and looks for what decides. On an ordered axis neighbours are
    compared; if it is halved, only the first and the last value are judged in full. `left_out`: values
    of axes that are not judged, each with the reason."""
    matrix = _Matrix(arguments, axes, title, is_ordered, is_halved, left_out)
    with_pages = [wanted[0], wanted[-1]] if is_halved else wanted
    try:
        for number, result in enumerate(matrix.results(with_pages), start=1):
            matrix.keep(result)
            print(_line(number, len(with_pages), result.record), file=sys.stderr, flush=True)
            if result.stopped is not None:
                raise result.stopped
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
    failed = f"{counted(len(cell.failed), 'requirement')} failed"
    found = f"{failed}; {cell.why_not}" if cell.why_not else failed
    return f"cell {number} of {of}, {cell.folder}: {found} ({cell.minutes:.1f} min)"


class _Matrix:
    """The cells that are judged so far, in the order of their settings, each with its outcomes."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        axes: Axes,
        title: str,
        is_ordered: bool,
        is_halved: bool,
        left_out: Sequence[str],
    ) -> None:
        self._arguments = arguments
        self._axes = axes
        self._is_ordered, self._is_halved = is_ordered, is_halved
        self._left_out, self._num_wanted = tuple(left_out), 0
        self._issues = read_issues(arguments.findings)
        self.folder = choices.writable(arguments.output / MATRICES / slug(title)).resolve()
        self._judged: list[tuple[CellRecord, Outcomes]] = []
        self.differences: list[Difference] = []
        self._num_probes, self._probe_s = 0, 0.0
        self.is_complete = False

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        return tuple(cell for cell, _ in self._judged)

    def results(self, wanted: Iterable[Settings]) -> Iterator[CellResult]:
        """Yields those that are kept from an earlier run, then each that is judged."""
        tasks = [self.task(each) for each in wanted]
        self._num_wanted = len(tasks)
        kept = [*self._kept(tasks)] if self._arguments.resume else []
        names = {each.record.folder for each in kept}
        yield from kept
        for each in tasks:
            if each.folder not in names:
                yield cells.judge_cell(each, self.folder / each.folder)

    def task(self, settings: Settings) -> CellTask:
        cell = cell_of(self._arguments.engine, self._axes, settings)
        name = folder_name(settings, base_of(self._axes))
        return CellTask(cell, name, self._arguments.pytest, self._arguments.jobs, self._issues)

    def _kept(self, tasks: Sequence[CellTask]) -> Iterator[CellResult]:
        """Yields the cells of the matrix that is there, if this suite has judged them in full."""
        path = self.folder / MATRIX_FILE
        before = MATRIX.read(path) if path.is_file() else None
        if before is None or before.suite != suite_stamp():
            return
        there = {
            (each.engine, each.folder, each.options): each for each in before.cells if not each.why_not
        }
        for task in tasks:
            options = tuple(task.session(self.folder).options)
            record = there.get((task.cell.engine, task.folder, options))
            if record is not None:
                verdict = VERDICT.read(self.folder / task.folder / RECORD)
                yield CellResult(record, outcomes_in(task.cell, verdict))

    def keep(self, result: CellResult) -> None:
        """Adds a cell, without pages if nothing of it counts, and writes the matrix as far as it is.
        Raises `UsageError` if nothing could be asked in the first: an older matrix stays."""
        record = result.record
        if not self._judged and not (record.promises or record.num_requests):
            raise UsageError(f"{record.engine!r} is not judged, since no test was run: see above")
        if not record.promises:
            shutil.rmtree(self.folder / record.folder, ignore_errors=True)
        self._judged.append((record, result.outcomes))
        self._judged.sort(key=self._place)
        self.write()

    def remove_others(self) -> None:
        """Removes the folders of cells that an earlier run has left."""
        kept = {each.folder for each in self.cells if each.promises}
        for path in self.folder.glob(f"*/{RECORD}"):
            if path.parent.name not in kept:
                shutil.rmtree(path.parent)

    def _place(self, each: tuple[CellRecord, Outcomes]) -> list[int]:
        settings = each[0].settings
        return [[*self._axes[axis]].index(value) for axis, value in settings.items()]

    def decide(self) -> None:
        """Searches for what decides each set of requirements that break in the same cells."""
        record = self._record()
        rows = {str(number): each for number, each in enumerate(told_rows(record).items())}
        together = {
            row: names[:MOST_TOGETHER] if what in record.findings else [min(names, key=len)]
            for row, ((what, _), names) in rows.items()
        }
        searches = {
            (row, number): search
            for row, ((_, signs), _) in rows.items()
            for number, search in enumerate(self._searches(signs))
        }
        ask = partial(self._ask, together)
        for (row, _), found in run_searches(searches, ask, self._arguments.probes):
            (what, _), names = rows[row]
            self.differences.append(Difference(tuple(names), what, together[row][0], **vars(found)))

    def _searches(self, signs: Sequence[RequirementOutcome]) -> Iterator[Search]:
        """Yields the searches for a requirement that breaks in one cell and holds in another: one to
        the base if it holds there, else between the nearest two; on an ordered axis one for each
        change."""
        if self._is_halved:
            (axis,) = self._axes
            yield change_between(axis, [*self._axes[axis]], signs[0] in BREAKS)
            return
        told = [i for i, sign in enumerate(signs) if sign in DECIDED]
        pairs = [(i, j) for i in told for j in told if signs[i] in BREAKS and signs[j] == "held"]
        if self._is_ordered:
            changes = [pair for pair in pairs if {*pair} in map(set, pairwise(told))]
            yield from map(self._between, changes)
        else:
            yield self._between(min(pairs, key=self._distance))

    def _between(self, pair: tuple[int, int]) -> Search:
        breaking, holding = (self.cells[each].settings for each in pair)
        return smallest_difference(breaking, holding)

    def _distance(self, pair: tuple[int, int]) -> tuple[bool, int]:
        breaking, holding = (self.cells[each].settings for each in pair)
        num_other = sum(breaking[axis] != holding[axis] for axis in breaking)
        return holding != base_of(self._axes), num_other

    def _ask(
        self, together: Mapping[str, Sequence[str]], settings: Settings, rows: Collection[str]
    ) -> Outcomes:
        """Asks what stands for each row, and returns the outcome of the row."""
        names = {name for each in rows for name in together[each]}
        start = time.monotonic()
        try:
            found = asked_alone(self.task(settings), names)
            return {
                each: merged_outcome([found.get(name, "not run") for name in together[each]])
                for each in rows
            }
        finally:
            lasted_s = time.monotonic() - start
            self._num_probes += 1
            self._probe_s += lasted_s
            asked = f"asked {counted(len(names), 'requirement')} alone"
            where = folder_name(settings, base_of(self._axes))
            print(f"{asked}: {where} ({lasted_s:.0f} s)", file=sys.stderr, flush=True)

    def write(self) -> MatrixRecord:
        """Writes record and page, and returns the record."""
        record = self._record()
        MATRIX.write(record, self.folder / MATRIX_FILE)
        replace_text(self.folder / PAGE, matrix_page(record))
        return record

    def _record(self) -> MatrixRecord:
        failed = sorted({name for cell in self.cells for name in cell.failed})
        known = {what for cell in self.cells for what in cell.failed.values()}
        return MatrixRecord(
            engine=self._arguments.engine,
            axes={name: tuple(values) for name, values in self._axes.items()},
            is_ordered=self._is_ordered,
            cells=self.cells,
            outcomes={
                name: tuple(each.get(name, "not run") for _, each in self._judged) for name in failed
            },
            differences=tuple(self.differences),
            num_probes=self._num_probes,
            probe_minutes=self._probe_s / 60,
            made=made_now(),
            suite=suite_stamp(),
            is_complete=self.is_complete,
            findings=tuple(sorted(known & {each.title for each in self._issues})),
            num_missing=self._num_wanted - len(self.cells),
            left_out=self._left_out,
        )
