"""The console script `batchproof`; `python -m batchproof` is the same.

A command is a module with `add_arguments(parser)` and `run(arguments) -> int`. Only the module of
the command asked for is imported, since most of them bring torch along.

Exit codes: 0 fine, 1 something was found wrong, 2 wrong input (one sentence on stderr), 130 stopped
with Ctrl-C, 143 with SIGTERM, 141 the reader of the output has closed it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, NoReturn, TextIO

from batchproof import places
from batchproof.cli.interrupts import interruptible
from batchproof.errors import BatchproofError, Interrupt, UsageError

INTERRUPTED = 128 + 2  # SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE


@dataclass(frozen=True, slots=True)
class Command:
    """Names the module of a command and says what the command is for."""

    module: str
    purpose: str
    needs_checkout: bool = False


COMMANDS = {
    "test": Command("batchproof.cli.conformance", "run the conformance suite on engines"),
    "bench": Command("batchproof.cli.bench_command", "measure engines, counting only checked tokens"),
    "judge": Command(
        "batchproof.judgement.judge_command",
        "run the whole suite on an engine and write a verdict page",
    ),
    "reports": Command(
        "batchproof.judgement.reports_command",
        "write the reports on defects of released libraries to their maintainers",
        needs_checkout=True,
    ),
    "requirements": Command(
        "batchproof.judgement.requirements_command",
        "list, show, compare and explain the dated sets that an engine can be judged by",
    ),
    "verify": Command(
        "batchproof.judgement.verify_command", "run a random share of a verdict again and compare"
    ),
    "badge": Command("batchproof.judgement.badge_command", "turn a verdict into a badge of shields.io"),
    "invariance": Command(
        "batchproof.judgement.invariance_command",
        "grade how far answers depend on batch, neighbours, arrival, chunks, prefix hits and others",
    ),
    "triage": Command(
        "batchproof.triage.triage_command",
        "say of a running engine whether its answers are corrupt, rounded, or set otherwise",
    ),
    "replay": Command(
        "batchproof.replay.replay_command", "run again a failure that --repro has written"
    ),
    "report": Command("batchproof.report", "draw one HTML page from result files"),
    "site": Command(
        "batchproof.report.site", "write verdicts, benchmarks and grades as static pages to a folder"
    ),
    "compare": Command(
        "batchproof.bench.compare_files", "say whether the second of two result files is slower"
    ),
    "demo": Command("batchproof.demo", "show static waves against continuous batching, step by step"),
    "faults": Command(
        "batchproof_lab.faults_command",
        "run the suite on every planted fault and write the kill table",
        needs_checkout=True,
    ),
    "honest": Command(
        "batchproof_lab.honest_command",
        "look for false alarms: honest engines on many workloads",
        needs_checkout=True,
    ),
    "mutants": Command(
        "batchproof_lab.mutation.mutants_command",
        "change an engine at one point, many times, and list the changes that no test sees",
        needs_checkout=True,
    ),
    "models": Command(
        "batchproof_lab.model_sweep.sweep_command",
        "find the causal LMs of transformers that an engine serves",
    ),
    "install": Command(
        "batchproof.cli.install", "install released engines, each into an environment of its own"
    ),
    "host": Command("batchproof.cli.host", "serve an engine behind a pipe, in a process of its own"),
    "checkpoint": Command(
        "batchproof.cli.checkpoint", "write an embedded model to disk, for engines that load their own"
    ),
}


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 gets escapes, not a crash
            stream.reconfigure(errors="backslashreplace")
    try:
        with interruptible():
            exit_code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # a pipe that broke shows here, not when the interpreter goes down
    except BatchproofError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupt as interrupt:
        return interrupt.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout)
        return BROKEN_PIPE
    return exit_code


def _dispatch(argv: list[str]) -> int:
    parser = _Parser(
        prog="batchproof", description="Proves that an LLM engine's batching changes only its speed."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=command.purpose, description=command.purpose, allow_abbrev=False
        )
        if argv[:1] == [name]:
            _module(name).add_arguments(subparser)
    arguments, first = parser.parse_known_args(argv)
    if first and "arguments" not in arguments:
        parser.error(f"unrecognized arguments: {' '.join(first)}")
    if first:  # what comes before the first argument that is no option
        arguments.arguments = [*first, *arguments.arguments]
    exit_code: int = _module(arguments.command).run(arguments)
    return exit_code


def _module(name: str) -> Any:
    """Returns the module of a command. Raises `UsageError` where the command cannot run."""
    command = COMMANDS[name]
    if command.needs_checkout and places.ROOT != places.CHECKOUT:
        raise UsageError(
            f"`batchproof {name}` checks the suite itself: run it in a checkout of Batchproof"
        )
    return importlib.import_module(command.module)


def _discard(stream: TextIO) -> None:
    """Redirects buffered output to the null device, so that the interpreter does not complain on
    exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
