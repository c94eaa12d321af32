"""`batchproof lab faults`: the kill table. Is every planted fault caught, and by what?

1. Each fault on each model, first seed, by the tests of the promise it breaks.
2. Faults that nothing caught so far: on all models in one session, by those and then by all others.
3. On the quickest model that shows it, the further seeds.
4. Test functions that have caught nothing so far, alone on one fault after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.models.embedded import DEFAULT_MODELS
from batchproof.records.campaign import Question
from batchproof.records.kills import KILL_TABLE, KillTableRecord
from batchproof.run.registry import faults
from batchproof_lab.attempts import Attempt, Hunt, Kill, make_attempt
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.found import Found
from batchproof_lab.kill_page import kill_page
from batchproof_lab.kill_table import KillTable
from batchproof_lab.kill_table_problems import problems
from batchproof_lab.options import add_options
from batchproof_lab.update import still_busy, updated, whole_table
from batchproof_lab.work import Work
from batchproof_lab.worker_pool import LostTask

TASK_LIMIT_S = 3600.0  # far beyond any session: a worker that hangs is given up


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
    add_options(parser, time_limit=(5.0, "one call of an engine counts as hung"))


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if the table proves the suite, else 1. Partial or interrupted tables are written to
    `faults-partial.*`. Raises `UsageError`.
    """
    known = faults()
    names = choices.select_names(arguments.names, known, "planted fault", "results/faults.md")
    models = choices.select_names(arguments.model, DEFAULT_MODELS, "embedded model")
    output = choices.writable(arguments.output)
    found: Found[Hunt] = Found(Hunt)

    def table(share: Sequence[str] = names) -> KillTable:
        planted = {name: known[name] for name in share}
        return KillTable.of(planted, models, arguments.seeds, found.outcomes.values(), busy)

    def finish() -> int:
        record = table().as_record(found.made())
        return written(updated(whole, record) if whole and record.is_complete else record, output)

    busy: frozenset[str] | None = None
    whole = whole_table(output / "faults.json", table()) if arguments.update else None
    if whole is not None:
        busy = still_busy(whole, names)
    share = arguments.shard.of(names)
    work = Work(
        question=_question(names, models, arguments),
        found=found,
        key=attrgetter("key"),
        function=partial(make_attempt, time_limit_s=arguments.time_limit),
        outcome_of=_hunt,
        progress=Progress("faults", "hunt", 0, arguments.progress),
    )

    def tasks() -> list[Attempt]:
        todo = table(share).todo()
        work.progress.expect(len(todo))
        return todo

    return work.run(arguments, TASK_LIMIT_S, tasks, finish)


def merge(asked: Mapping[str, Any], found: Found[Hunt], output: Path) -> int:
    """Writes what the journals of a question hold. The tests that catch nothing are hunted with the
    whole table: by the command itself, without `--shard`, where these journals lie."""
    planted = {name: faults()[name] for name in asked["faults"]}
    table = KillTable.of(planted, asked["models"], asked["seeds"], found.outcomes.values())
    return written(table.as_record(found.made()), output)


def written(record: KillTableRecord, output: Path) -> int:
    """Writes the table and its page, and prints its problems; returns 1 if there are any, else 0."""
    is_whole = record.is_complete and record.is_full
    write_result(KILL_TABLE, record, kill_page, output, "faults", is_whole)
    found = problems(record)
    print(*found, sep="\n", end="\n" if found else "")
    caught = sum(bool(row.home) for row in record.faults.values())
    right, votes = record.diagnosis.right, record.diagnosis.votes
    print(f"{caught} of {len(record.faults)} faults caught; right cause in {right} of {votes} catches")
    return 1 if found else 0


def _question(names: list[str], models: list[str], arguments: argparse.Namespace) -> Question:
    asked = {"faults": names, "models": models, "seeds": arguments.seeds}
    return Question("faults", asked | {"time_limit": arguments.time_limit}, code_digest())


def _hunt(attempt: Attempt, found: Kill | LostTask) -> Hunt:
    kill = Kill(own_failures=(found.why,)) if isinstance(found, LostTask) else found
    return Hunt(attempt, kill)
