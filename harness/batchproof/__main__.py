"""`python -m batchproof COMMAND`: what is not a test run.

A command is a module with `add_arguments(parser)` and `run(arguments) -> int`. Only the module of
the command asked for is imported, since most of them bring torch along.

Exit codes: 0 fine, 1 something was found wrong, 2 wrong input (one sentence on stderr), 130 stopped
with Ctrl-C, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import NoReturn, TextIO

from batchproof.errors import BatchproofError, UsageError

INTERRUPTED = 128 + 2  # SIGINT, as a shell reports it
BROKEN_PIPE = 128 + 13  # SIGPIPE


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives and what it is for."""

    module: str
    purpose: str


COMMANDS = {
    "checkpoint": Command(
        "batchproof.cli.checkpoint", "write an embedded model to disk, for engines that load their own"
    ),
    "compare": Command(
        "batchproof.bench.compare", "is the second of two result files slower than the first?"
    ),
    "demo": Command("batchproof.demo", "show static waves against continuous batching, step by step"),
    "faults": Command("batchproof.campaign.faults", "the kill table: is every planted fault caught?"),
    "honest": Command(
        "batchproof.campaign.honest", "no false alarms: honest engines on many workloads"
    ),
    "install": Command(
        "batchproof.cli.install", "released engines, each into an environment of its own"
    ),
    "judge": Command(
        "batchproof.judgement.command", "the whole suite before an engine, and a page with the verdict"
    ),
    "models": Command(
        "batchproof.model_sweep.command", "which causal LMs of transformers does an engine serve right?"
    ),
    "replay": Command("batchproof.replay.command", "is a failure that --repro has kept still there?"),
    "report": Command("batchproof.report", "one HTML page of result files"),
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 gets escapes, not a crash
            stream.reconfigure(errors="backslashreplace")
    try:
        exit_code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # a pipe that broke shows here, not when the interpreter goes down
    except BatchproofError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout)
        return BROKEN_PIPE
    return exit_code


def _dispatch(argv: list[str]) -> int:
    parser = _Parser(prog="python -m batchproof", description="Batchproof beside pytest.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=command.purpose, description=command.purpose, allow_abbrev=False
        )
        if argv[:1] == [name]:
            importlib.import_module(command.module).add_arguments(subparser)
    arguments = parser.parse_args(argv)
    exit_code: int = importlib.import_module(COMMANDS[arguments.command].module).run(arguments)
    return exit_code


def _discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, or the interpreter complains on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
