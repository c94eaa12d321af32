"""`batchproof judge matrix ENGINE`: the suite on configurations of one engine, and what decides."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise

from batchproof.cli import choices
from batchproof.errors import UsageError
from batchproof.judgement import suite_session
from batchproof.judgement.axes import MODEL, Axes, axes_of, base_of, cell_of, chosen, folder_name
from batchproof.judgement.cells import (
    DEFAULT_OPTIONS,
    CellResult,
    CellTask,
    asked_alone,
    judge_cell,
)
from batchproof.judgement.deciding import NoMoreProbes, smallest_difference
from batchproof.judgement.matrix_page import matrix_page, summary_lines
from batchproof.judgement.output import RECORD, write_index
from batchproof.judgement.suite_session import split_options
from batchproof.models.embedded import DTYPES
from batchproof.oracle.precision import KV_CACHES
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
from batchproof.records.verdict import RequirementOutcome
from batchproof.requirements.issues import read_issues
from batchproof.run.registry import engines_module, resolve_engine
from batchproof.validation.values import one_of

LIBRARIES = "adapters.released.libraries"
RELEASE = "release"  # the axis of `judge releases`
DECIDED = (*BREAKS, "held")
# Options of the suite whose values are known.
CHOICES = {"--dtype": DTYPES, "--compute-dtype": DTYPES, "--kv-cache-dtype": KV_CACHES}
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
    suite_session.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if no requirement breaks in any cell, else 1. Raises `UsageError`."""
    axes = axes_of(declared_axes(arguments.engine), arguments.axis or (), arguments.engine)
    require_options(arguments, axes)
    return judge_matrix(arguments, axes, chosen(axes), arguments.engine)


def require_options(arguments: argparse.Namespace, axes: Axes) -> None:
    """Raises `UsageError` for a wrong option of the engine or the suite, before the work is done, and
    for an option that `--pytest` gives as well. A model that it gives is that of other axes."""
    given = {each.partition("=")[0] for each in split_options(arguments.pytest)}
    for name in axes:
        for value in axes[name]:
            cell = cell_of(arguments.engine, axes, {**base_of(axes), name: value})
            resolve_engine(cell.engine)
            for option in cell.options:
                written, _, wanted = option.partition("=")
                if written in CHOICES:
                    one_of(f"--axis {name}: {written}", wanted, CHOICES[written])
                if written in given and written != MODEL:
                    raise UsageError(f"{written} is set by --axis {name!r} and by --pytest: choose one")


def declared_axes(engine: str) -> Axes:
    """Returns the axes in the `engine.toml` of a released engine."""
    library = engines_module(LIBRARIES).LIBRARIES.get(engine.partition("?")[0])
    axes: Axes = library.axes if library else {}
    return axes


def judge_matrix(
    arguments: argparse.Namespace,
    axes: Axes,
    wanted: Sequence[Settings],
    title: str,
    is_ordered: bool = False,
) -> int:
    """Judges the wanted settings and looks for what decides. On an ordered axis neighbours are
    compared."""
    matrix = _Matrix(arguments, axes, title, is_ordered)
    try:
        for number, settings in enumerate(wanted, start=1):
            result = judge_cell(matrix.task(settings))
            matrix.keep(result)
            print(_line(number, len(wanted), result.record), file=sys.stderr, flush=True)
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
    """The cells that are judged so far, each with its outcomes."""

    def __init__(self, arguments: argparse.Namespace, axes: Axes, title: str, is_ordered: bool) -> None:
        self._arguments = arguments
        self._axes = axes
        self._is_ordered = is_ordered
        self._issues = read_issues(arguments.findings)
        self.folder = choices.writable(arguments.output / MATRICES / slug(title)).resolve()
        self._judged: list[CellResult] = []
        self.differences: list[Difference] = []
        self._asked: dict[frozenset[tuple[str, str]], Mapping[str, RequirementOutcome]] = {}
        self._probe_s = 0.0
        self.is_complete = False

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        return tuple(each.record for each in self._judged)

    def task(self, settings: Settings) -> CellTask:
        cell = cell_of(self._arguments.engine, self._axes, settings)
        folder = self.folder / folder_name(settings, base_of(self._axes))
        return CellTask(cell, folder, self._arguments.pytest, self._arguments.jobs, self._issues)

    def keep(self, result: CellResult) -> None:
        """Writes the matrix as far as it is. Raises `UsageError` if nothing could be asked in the first
        cell: an older matrix stays."""
        if not self._judged and not result.outcomes and result.record.why_not:
            raise UsageError(
                f"{result.record.engine!r} is not judged, since no test was run: see above"
            )
        self._judged.append(result)
        self.write()

    def remove_others(self) -> None:
        """Removes the folders of cells that an earlier run has left."""
        kept = {each.folder for each in self.cells}
        for path in self.folder.glob(f"*/{RECORD}"):
            if path.parent.name not in kept:
                shutil.rmtree(path.parent)

    def decide(self) -> None:
        """Searches for what decides each set of requirements that break in the same cells."""
        record = self._record()
        rows = told_rows(record)
        together = {
            row: names[:MOST_TOGETHER] if row[0] in record.findings else [min(names, key=len)]
            for row, names in rows.items()
        }
        for row, names in rows.items():
            shown = together[row][0]
            for breaking, holding in self._pairs(row[1]):
                with suppress(NoMoreProbes):
                    found = smallest_difference(breaking, holding, partial(self._ask, together, row))
                    self.differences.append(Difference(tuple(names), row[0], shown, **vars(found)))
            del together[row]

    def _pairs(self, signs: Sequence[RequirementOutcome]) -> Iterator[tuple[Settings, Settings]]:
        """Yields settings in which a requirement breaks, and in which it holds: those of the base if it
        holds there, else the nearest two; on an ordered axis two for each change."""
        told = [i for i, sign in enumerate(signs) if sign in DECIDED]
        pairs = [(i, j) for i in told for j in told if signs[i] in BREAKS and signs[j] == "held"]
        if self._is_ordered:
            pairs = [pair for pair in pairs if {*pair} in map(set, pairwise(told))]
        else:
            pairs = [min(pairs, key=self._distance)]
        for breaking, holding in pairs:
            yield self.cells[breaking].settings, self.cells[holding].settings

    def _distance(self, pair: tuple[int, int]) -> tuple[bool, int]:
        breaking, holding = (self.cells[each].settings for each in pair)
        num_other = sum(breaking[axis] != holding[axis] for axis in breaking)
        return holding != base_of(self._axes), num_other

    def _ask(
        self, together: Mapping[Row, Sequence[str]], row: Row, settings: Settings
    ) -> RequirementOutcome:
        """Returns the outcome of a row. A run asks what stands for all rows that are open still. Raises
        `NoMoreProbes`."""
        key = frozenset(settings.items())
        if key not in self._asked:
            if len(self._asked) == self._arguments.probes:
                raise NoMoreProbes
            self._asked[key] = self._asked_alone(settings, {*chain.from_iterable(together.values())})
        return merged_outcome([self._asked[key].get(name, "not run") for name in together[row]])

    def _asked_alone(
        self, settings: Settings, names: Collection[str]
    ) -> Mapping[str, RequirementOutcome]:
        start = time.monotonic()
        task = self.task(settings)
        try:
            return asked_alone(task, names)
        finally:
            lasted_s = time.monotonic() - start
            self._probe_s += lasted_s
            asked = f"asked {counted(len(names), 'requirement')} alone"
            print(f"{asked}: {task.folder.name} ({lasted_s:.0f} s)", file=sys.stderr, flush=True)

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
                name: tuple(each.outcomes.get(name, "not run") for each in self._judged)
                for name in failed
            },
            differences=tuple(self.differences),
            num_probes=len(self._asked),
            probe_minutes=self._probe_s / 60,
            made=made_now(),
            suite=suite_stamp(),
            is_complete=self.is_complete,
            findings=tuple(sorted(known & {each.title for each in self._issues})),
        )
