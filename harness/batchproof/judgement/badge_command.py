"""`batchproof judge badge VERDICT.json`: the verdict as an endpoint of shields.io."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from batchproof.records.file_kinds import replace_text
from batchproof.records.verdict import EngineVerdict, Verdict
from batchproof.requirements.consistency import consistent_verdict
from batchproof.requirements.promises import Promise

COLORS: Mapping[Verdict, str] = {
    "broken": "red",
    "incomplete": "lightgrey",
    "undecided": "orange",
    "known failures": "orange",
    "differs by design": "yellowgreen",
    "held": "green",
    "untested": "lightgrey",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verdict", type=Path, metavar="VERDICT.json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="(default: print it)")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0. Raises `UsageError` if the file is no verdict, or contradicts itself."""
    text = json.dumps(badge(consistent_verdict(arguments.verdict)), indent=1)
    if arguments.output is None:
        print(text)
    else:
        replace_text(arguments.output, text + "\n")
    return 0


def badge(verdict: EngineVerdict) -> dict[str, object]:
    """Returns the fields of the endpoint: https://shields.io/badges/endpoint-badge. Promises that
    were not tested, for whatever reason, are not held."""
    held, broken = len(verdict.held), len(verdict.broken)
    name = f"{verdict.requirement_set.name}: " if verdict.requirement_set else ""
    words = f"{name}{held} of {len(Promise)} promises"
    if broken:
        words += f", {broken} broken"
    elif verdict.verdict in ("incomplete", "undecided", "known failures"):
        words += f", {verdict.verdict}"
    color = "brightgreen" if held == len(Promise) else COLORS[verdict.verdict]
    return {"schemaVersion": 1, "label": "batchproof", "message": words, "color": color}
