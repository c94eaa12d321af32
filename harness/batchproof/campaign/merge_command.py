"""`batchproof merge FILE...`: one result out of several that were made apart."""

from __future__ import annotations

import argparse
from pathlib import Path

from batchproof.campaign.honest_merge import added_up
from batchproof.campaign.honest_page import honest_page
from batchproof.campaign.honest_table import honest_engines
from batchproof.cli import choices
from batchproof.cli.result_files import write_result
from batchproof.records.honest import HONEST
from batchproof.records.made import made_now


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof merge`."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="records of `batchproof honest`, whole or partial, each of other seeds",
    )
    choices.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if the merged record holds no alarm, else 1. Raises `UsageError`."""
    output = choices.writable(arguments.output)
    records = {str(path): HONEST.read(path) for path in dict.fromkeys(arguments.files)}
    names = " ".join(path.name for path in arguments.files)
    record = added_up(records, made_now(f"python -m batchproof merge {names}"))
    write_result(
        HONEST, record, honest_page, output, "honest", set(record.engines) >= {*honest_engines()}
    )
    return 1 if record.alarms else 0
