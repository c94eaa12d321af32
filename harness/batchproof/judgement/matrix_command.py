"""`batchproof judge matrix ENGINE`: the suite on configurations of one engine, and what decides."""

import argparse
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

from batchproof.cli import choices
from batchproof.errors import UsageError
from batchproof.judgement import suite_session
from batchproof.judgement.axes import MODEL, Axes, Cell, axes_of, cell_of, chosen, declared_axes, unlike
from batchproof.judgement.cells import Outcomes, judge_cell, outcomes_in
from batchproof.judgement.deciding import (
    MOST_TOGETHER,
    Search,
    change_between,
    run_searches,
    smallest_difference,
)
from batchproof.judgement.matrix_page import matrix_page, summary_lines
from batchproof.judgement.output import RECORD, write_index, write_verdict
from batchproof.judgement.possible import available, require_options
from batchproof.judgement.suite_session import Session, session_of, suite_options
from batchproof.plugin.deselection import ONE
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
    Row,
    Settings,
    merged_outcome,
    told_rows,
)
from batchproof.records.provenance import made_now
from batchproof.records.suite_stamp import suite_stamp
from batchproof.records.texts import counted, slug
from batchproof.records.verdict import VERDICT, EngineVerdict, RequirementOutcome
from batchproof.requirements.issues import read_issues
from batchproof.run.registry import resolve_engine

DEFAULT_OPTIONS = f"{MODEL}=llama-hash --hypothesis-profile=quick"
UNDIAGNOSED = "--diagnose-for=0"
DEPTH = 3  # of a cell's page below the folder of all verdicts: matrices, the matrix, the cell


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
    choices.add_count(
        parser, "--probes", 24, "how many runs may ask requirements alone, to find what decides"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the cells that this suite has judged in full"
    )
    suite_session.add_common(parser, f"'{DEFAULT_OPTIONS}'")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if no requirement breaks in any cell, else 1. Raises `UsageError`."""
    declared = declared_axes(resolve_engine(arguments.engine).axes)
    left_out: Sequence[str] = ()
    if not arguments.axis:
        declared, left_out = available(declared)
    axes = axes_of(declared, arguments.axis or (), arguments.engine)
    require_options(arguments, axes)
    return Matrix(arguments, axes, left_out=left_out).judge(chosen(axes))


class Matrix:
    """The matrix as far as it is judged. On an ordered axis, such as releases, neighbours are compared.
    `left_out`: values of axes that are not judged, each with the reason. Raises `UsageError`."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        axes: Axes,
        is_ordered: bool = False,
        left_out: Sequence[str] = (),
    ) -> None:
        self._arguments, self._axes = arguments, axes
        self._issues = read_issues(arguments.findings)
        name = f"{arguments.engine} releases" if is_ordered else arguments.engine
        self._folder = choices.writable(arguments.output / MATRICES / slug(name)).resolve()
        self._outcomes: dict[str, Outcomes] = {}  # by the folder of a cell
        self._record = MatrixRecord(
            engine=arguments.engine,
            axes={name: tuple(values) for name, values in axes.items()},
            is_ordered=is_ordered,
            made=made_now(),
            suite=suite_stamp(),
            left_out=tuple(left_out),
        )

    def judge(self, wanted: Sequence[Settings]) -> int:
        """Judges these settings, looks for what decides, and writes record and page, also of what is
        done when it is stopped. Returns the exit status."""
        cells = [self._cell(each) for each in wanted]
        self._record = replace(self._record, num_missing=len(cells))
        try:
            if self._arguments.resume:
                self._keep_finished(cells)
            for cell in cells:
                if cell.folder not in self._outcomes:
                    with self._session(cell) as session:
                        judge_cell(cell, session, self._issues, self._keep)
            self._decide()
            self._remove_others()
            is_complete = not any(each.why_not for each in self._record.cells)
            self._record = replace(self._record, is_complete=is_complete)
        finally:
            if self._outcomes:
                self._write()
                write_index(self._arguments.output)
        print("\n".join(summary_lines(self._record)))
        print(f"written: {self._folder / PAGE}", file=sys.stderr)
        return 1 if self._record.outcomes or not is_complete else 0

    def _cell(self, settings: Settings) -> Cell:
        return cell_of(self._arguments.engine, self._axes, settings)

    def _session(self, cell: Cell, *more: str) -> AbstractContextManager[Session]:
        return session_of(cell.engine, [*self._options(cell), *more], self._arguments.jobs)

    def _options(self, cell: Cell) -> list[str]:
        """Returns the options of pytest. If the model is an axis, no other one is asked."""
        given = suite_options(cell.engine, self._arguments.pytest or DEFAULT_OPTIONS)
        if cell.model is not None:
            given = [each for each in given if not each.startswith(MODEL)]
        return [*given, *cell.options]

    def _keep_finished(self, cells: Sequence[Cell]) -> None:
        """Keeps the cells of the matrix that is there, if this suite has judged them in full."""
        path = self._folder / MATRIX_FILE
        before = MATRIX.read(path) if path.is_file() else None
        if before is None or before.suite != self._record.suite:
            return
        there = {
            (each.engine, each.folder, each.options): each for each in before.cells if not each.why_not
        }
        for cell in cells:
            record = there.get((cell.engine, cell.folder, tuple(self._options(cell))))
            if record is not None:
                verdict = VERDICT.read(self._folder / cell.folder / RECORD)
                self._keep(record, outcomes_in(cell, verdict))

    def _keep(self, cell: CellRecord, outcomes: Outcomes, verdict: EngineVerdict | None = None) -> None:
        """Adds a cell, with its page if anything of it counts, and writes the matrix as far as it is.
        Raises `UsageError` if nothing could be asked in the first: an older matrix stays."""
        if not self._outcomes and not (cell.promises or cell.num_requests):
            raise UsageError(f"{cell.engine!r} is not judged, since no test was run: see above")
        if cell.promises and verdict is not None:
            write_verdict(verdict, self._folder / cell.folder, DEPTH)
        self._outcomes[cell.folder] = outcomes
        cells = sorted([*self._record.cells, cell], key=self._place)
        failed = [each for one in cells for each in one.failed.items()]
        self._record = replace(
            self._record,
            cells=tuple(cells),
            outcomes={
                name: tuple(self._outcomes[each.folder].get(name, "not run") for each in cells)
                for name in sorted({name for name, _ in failed})
            },
            findings=tuple(
                sorted({what for _, what in failed} & {each.title for each in self._issues})
            ),
            num_missing=self._record.num_missing - 1,
        )
        self._write()
        num = len(cells)
        found = f"{counted(len(cell.failed), 'requirement')} failed"
        found += f"; {cell.why_not}" if cell.why_not else ""
        where = f"cell {num} of {num + self._record.num_missing}, {cell.folder}"
        print(f"{where}: {found} ({cell.minutes:.1f} min)", file=sys.stderr, flush=True)

    def _place(self, cell: CellRecord) -> list[int]:
        return [[*self._axes[name]].index(value) for name, value in cell.settings.items()]

    def _remove_others(self) -> None:
        """Removes the folders of cells that an earlier run has left."""
        kept = {each.folder for each in self._record.cells if each.promises}
        for path in self._folder.glob(f"*/{RECORD}"):
            if path.parent.name not in kept:
                shutil.rmtree(path.parent)

    def _decide(self) -> None:
        """Searches for what decides each set of requirements that break in the same cells."""
        rows = told_rows(self._record)
        together = {
            row: names[: MOST_TOGETHER if row[0] in self._record.findings else 1]
            for row, names in rows.items()
        }
        searches = [(row, search) for row in rows for search in self._searches(row[1])]
        ask = partial(self._ask, together)
        for row, found in run_searches(searches, ask, self._arguments.probes):
            difference = Difference(**vars(found), requirements=tuple(rows[row]), what=row[0])
            differences = (*self._record.differences, difference)
            self._record = replace(self._record, differences=differences)

    def _searches(self, signs: Sequence[RequirementOutcome]) -> Iterator[Search]:
        """Yields the searches for a requirement that breaks in one cell and holds in another: one to
        the base if it holds there, else between the nearest two; on an ordered axis one for each
        change, among all values between."""
        cells = [each.settings for each in self._record.cells]
        breaking = [cell for cell, sign in zip(cells, signs, strict=True) if sign in BREAKS]
        holding = [cell for cell, sign in zip(cells, signs, strict=True) if sign == "held"]
        if not self._record.is_ordered:
            pairs, base = product(breaking, holding), self._record.base
            yield smallest_difference(*min(pairs, key=lambda it: (it[1] != base, len(unlike(*it)))))
            return
        ((axis, values),) = self._record.axes.items()
        for first, last in pairwise(each for each in cells if each in [*breaking, *holding]):
            if (first in breaking) != (last in breaking):
                between = values[values.index(first[axis]) : values.index(last[axis]) + 1]
                yield change_between(axis, between, first in breaking)

    def _ask(
        self, together: Mapping[Row, Sequence[str]], settings: Settings, rows: Collection[Row]
    ) -> Mapping[Row, RequirementOutcome]:
        """Asks what stands for each row, without any other test. Returns the outcome of each row."""
        cell, start = self._cell(settings), time.monotonic()
        names = {name for row in rows for name in together[row]}
        named = [f"{ONE}={cell.on_model(each)}" for each in names]
        found: Outcomes = {}
        with self._session(cell, *named, UNDIAGNOSED) as session:
            session.run()
            if session.verdict.is_file():
                found = outcomes_in(cell, VERDICT.read(session.verdict))
        lasted_s = time.monotonic() - start
        self._record = replace(self._record, num_probes=self._record.num_probes + 1)
        asked = f"asked {counted(len(names), 'requirement')} alone: {cell.folder} ({lasted_s:.0f} s)"
        print(asked, file=sys.stderr, flush=True)
        return {
            row: merged_outcome([found.get(name, "not run") for name in together[row]]) for row in rows
        }

    def _write(self) -> None:
        MATRIX.write(self._record, self._folder / MATRIX_FILE)
        replace_text(self._folder / PAGE, matrix_page(self._record))
