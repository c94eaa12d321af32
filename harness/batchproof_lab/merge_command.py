"""`batchproof merge FILE...`: one result out of several that were made apart.

Files are journals of campaigns, such as those of shards, and records of honest engines. Lines of one
question are added up, each task once; records of honest engines are added up if their seeds differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchproof.cli import choices
from batchproof.errors import UsageError
from batchproof.records.campaign import CAMPAIGN, Question
from batchproof.records.honest import HONEST, HonestRecord
from batchproof.records.mutants import MutantRecord
from batchproof.records.provenance import made_now
from batchproof.records.sweep import ToyRecord
from batchproof_lab import faults_command, honest_command
from batchproof_lab.attempts import Hunt
from batchproof_lab.found import Found
from batchproof_lab.honest_count import added_up
from batchproof_lab.honest_plan import honest_engines
from batchproof_lab.honest_tasks import HonestOutcome
from batchproof_lab.model_sweep import sweep_command
from batchproof_lab.mutation import mutants_command

HONEST_ENGINES = "honest"  # the campaign whose questions add up if their seeds differ
OTHERS: dict[str, tuple[type[Any], Callable[[Mapping[str, Any], Found[Any], Path], int]]] = {
    "faults": (Hunt, faults_command.merge),
    "models": (ToyRecord, sweep_command.merge),
    "mutants": (MutantRecord, mutants_command.merge),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="journals of one campaign (*.jsonl), or journals and records of honest engines (*.json)",
    )
    choices.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the result, and returns what the campaign itself would. Raises `UsageError`."""
    output = choices.writable(arguments.output)
    journals: dict[Question, list[Path]] = {}
    records: dict[str, HonestRecord] = {}
    for path in dict.fromkeys(arguments.files):
        if path.suffix == ".jsonl":
            journals.setdefault(_question(path), []).append(path)
        else:
            records[str(path)] = HONEST.read(path)
    if not records and len(journals) == 1:
        ((question, paths),) = journals.items()
        if question.campaign in OTHERS:
            kind, merge = OTHERS[question.campaign]
            return merge(question.asked, _found(kind, question, paths), output)
    for question, paths in journals.items():
        if question.campaign != HONEST_ENGINES:
            raise UsageError(
                f"'{paths[0]}' is of another campaign, question or code than the other files, and only "
                f"results of honest engines add up then"
            )
        found = _found(HonestOutcome, question, paths)
        records[str(paths[0])] = honest_command.merged(question.asked, found)
    names = " ".join(path.name for path in arguments.files)
    record = added_up(records, made_now(f"python -m batchproof merge {names}"))
    return honest_command.written(record, output, set(record.engines) >= set(honest_engines()))


def _question(path: Path) -> Question:
    if not path.is_file():
        raise UsageError(f"there is no file '{path}'")
    head, _ = CAMPAIGN.read(path)
    if head is None or head.campaign not in (HONEST_ENGINES, *OTHERS):
        raise UsageError(f"'{path}' holds nothing to merge")
    return head


def _found(kind: type[Any], question: Question, paths: list[Path]) -> Found[Any]:
    found: Found[Any] = Found(kind)
    found.read(paths, question)
    return found
