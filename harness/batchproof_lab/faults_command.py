"""`batchproof lab faults`: the kill table. Is every planted fault caught, and by what?

1. Each fault on each model, first seed, by the tests of the promise it breaks.
2. Faults that nothing caught so far: on all models in one session, by those and then by all others.
3. On the quickest model that shows it, the further seeds.
4. Test functions that have caught nothing so far, alone on one fault after the other.
"""

import argparse
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import UsageError
from batchproof.models.embedded import DEFAULT_MODELS
from batchproof.run.registry import faults
from batchproof_lab.campaign import Campaign, CampaignState, Question
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.kill_table import (
    KILL_TABLE,
    Attempt,
    FunctionRow,
    Hunt,
    Kill,
    KillTable,
    KillTableRecord,
    KillUpdate,
    diagnosis,
    make_attempt,
)
from batchproof_lab.pages import page

LOWEST_SCORE = 0.85  # of the diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="planted faults (default: all)")
    choices.add_repeatable(
        parser, "--model", "M", f"repeatable: {', '.join(DEFAULT_MODELS)} (default: all of these)"
    )
    parser.add_argument(
        "--seeds",
        type=choices.seeds,
        default=(1, 2, 3),
        metavar="N,N",
        help="seeds of Hypothesis (default: 1,2,3)",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="hunt the named faults only, and put their rows into the existing whole table",
    )
    choices.add_time_limit(parser, 5.0, "seconds after which one call of an engine counts as hung")
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if the table proves the suite, else 1. Partial or interrupted tables are written to
    `faults-partial.*`. Raises `UsageError`."""
    known = faults()
    names = choices.select_names(arguments.names, known, "planted fault", "results/faults.md")
    models = choices.select_names(arguments.model, DEFAULT_MODELS, "embedded model")
    output = choices.writable(arguments.output)
    state: CampaignState[Hunt] = CampaignState(Hunt)
    planted = {name: known[name] for name in names}
    whole, busy = None, None
    if arguments.update:
        empty = KillTable(planted, models, arguments.seeds)
        whole = whole_table(output / "faults.json", empty)
        # The test functions that catch a fault whose row stays.
        busy = frozenset(name for name, row in whole.tests.items() if _others(row, names))
    asked = (names, models, arguments.seeds, arguments.time_limit)
    progress = Progress("faults", "hunt", 0)

    def table() -> KillTable:
        return KillTable(planted, models, arguments.seeds, state.outcomes.values(), busy)

    def tasks() -> list[Attempt]:
        todo = table().todo()
        progress.expect(len(todo))
        return todo

    def finish() -> int:
        record = table().as_record(state.made())
        if whole is not None and record.is_complete:
            record = updated_table(whole, record)
        return write_table(record, output)

    campaign = Campaign(
        question=Question("faults", repr(asked), code_digest()),
        state=state,
        function=partial(make_attempt, time_limit_s=arguments.time_limit),
        lost_outcome=lambda attempt, lost: Hunt(attempt, Kill(own_failures=(lost.why,))),
        progress=progress,
    )
    return campaign.run(arguments, tasks, finish)


def write_table(record: KillTableRecord, output: Path) -> int:
    """Writes the table and its page, and prints its problems; returns 1 if there are any, else 0."""
    is_whole = record.is_complete and record.is_full
    write_result(KILL_TABLE, record, kill_page, output, "faults", is_whole)
    found = problems(record)
    print(*found, sep="\n", end="\n" if found else "")
    score, num_faults = record.diagnosis, len(record.faults)
    print(
        f"{record.num_caught} of {num_faults} faults caught; "
        f"right cause in {score.right} of {score.votes} catches"
    )
    return 1 if found else 0


def whole_table(path: Path, asked: KillTable) -> KillTableRecord:
    """The existing table. Raises `UsageError` if there is no complete one of the same models and
    seeds."""
    if not path.is_file():
        raise UsageError(f"--update needs the table {str(path)!r}, which is not there: make it first")
    table = KILL_TABLE.read(path)
    agrees = {
        "models": (table.models, tuple(asked.models)),
        "seeds": (table.seeds, tuple(asked.seeds)),
        "is_complete": (table.is_complete, True),
        "is_full": (table.is_full, True),
    }
    for key, (found, wanted) in agrees.items():
        if found != wanted:
            raise UsageError(
                f"--update: {str(path)!r} has {key} {found!r}, but this run has {wanted!r}"
            )
    return table


def updated_table(whole: KillTableRecord, fresh: KillTableRecord) -> KillTableRecord:
    """The whole table with the fresh rows in place of its own, and a note of when they were made."""
    rows = {**whole.faults, **fresh.faults}
    tests = {
        function: FunctionRow(
            row.is_generated, (*_others(whole.tests.get(function, row), fresh.faults), *row.faults)
        )
        for function, row in fresh.tests.items()
    }
    note = KillUpdate(tuple(sorted(fresh.faults)), fresh.made)
    return replace(
        whole,
        faults=rows,
        tests=tests,
        diagnosis=diagnosis(rows.values()),
        updates=(*whole.updates, note),
    )


def _others(row: FunctionRow, renewed: Collection[str]) -> list[str]:
    return [name for name in row.faults if name not in renewed]


def problems(table: KillTableRecord) -> list[str]:
    """Returns the problems, one line each.

    A table that was stopped shows only where the suite itself broke. Tests that catch nothing are a
    problem only in a table of all faults on all embedded models.
    """
    broken = [
        f"the suite itself broke on fault {name}: {text}"
        for name, row in table.faults.items()
        for text in row.own_failures
    ]
    if not table.is_complete:
        return broken
    idle = [
        f"{function} catches no fault: plant one that it catches, or take the test out"
        for function, row in table.tests.items()
        if table.is_full and not row.faults
    ]
    return [*_survivors(table), *broken, *idle, *_diagnosis_problem(table)]


def _survivors(table: KillTableRecord) -> Iterator[str]:
    for name, row in table.faults.items():
        for seed in table.seeds:
            kills = [kill for kill in row.kills if kill.seed == seed]
            if kills and not any(kill.caught_by for kill in kills):
                tried = ", ".join(row.home or table.models)
                yield f"fault {name} ({row.promise}) survives seed {seed} on {tried}: {row.lie}"


def _diagnosis_problem(table: KillTableRecord) -> Iterator[str]:
    right, votes = table.diagnosis.right, table.diagnosis.votes
    if votes and right < LOWEST_SCORE * votes:
        yield (
            f"the diagnosis names the right cause in {right} of {votes} catches, "
            f"{right / votes:.0%}; {LOWEST_SCORE:.0%} are required"
        )


def kill_page(table: KillTableRecord) -> str:
    rows = table.faults.values()
    broken = [{kill.broken for kill in row.kills} for row in rows]
    kinds = {
        kind: {name: row for name, row in table.faults.items() if row.kind == kind}
        for kind in dict.fromkeys(row.kind for row in rows)
    }
    return page(
        "faults",
        table=table,
        num_as_declared=sum(row.promise in each for row, each in zip(rows, broken, strict=True)),
        problems=[text.partition("\n")[0] for text in problems(table)],
        kinds=kinds,
        tests=sorted(table.tests.items(), key=lambda each: -len(each[1].faults)),
    )
