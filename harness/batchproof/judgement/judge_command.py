"""`batchproof judge ENGINE...`: runs the whole suite on each engine and writes a page about it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.errors import UsageError
from batchproof.judgement.output import folder_of, write_index, write_verdict
from batchproof.judgement.suite_session import add_common, session_of, suite_options
from batchproof.records.journal import JournalEntry
from batchproof.records.verdict import EngineVerdict
from batchproof.requirements.issues import KnownIssue, read_issues


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"engines to judge, as for pytest --engine (default: those of {OWN})")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine keeps what it was tested on, else 1. Ctrl-C keeps what is done.
    Raises `UsageError`."""
    engines = arguments.engines or required_engines(find())
    if len(set(engines)) < len(engines):
        twice = next(e for e in engines if engines.count(e) > 1)
        raise UsageError(f"{twice!r} is named twice")
    output, issues = choices.writable(arguments.output).resolve(), read_issues(arguments.findings)
    verdicts = [_judge(engine, arguments, output, issues) for engine in engines]
    return 0 if all(each.is_complete and not each.defects for each in verdicts) else 1


def _judge(
    engine: str, arguments: argparse.Namespace, output: Path, issues: Sequence[KnownIssue]
) -> EngineVerdict:
    verdicts = []

    def conclude(verdict: EngineVerdict, _found: Sequence[JournalEntry], _has_ended: bool) -> None:
        path = write_verdict(verdict, folder_of(verdict, output))
        write_index(output)
        broken = f", broken: {', '.join(verdict.broken)}" if verdict.broken else ""
        end = "" if verdict.is_complete else "; INCOMPLETE"
        print(f"{verdict.title}: {len(verdict.held)} promises held{broken}{end}")
        print(f"written: {path}", file=sys.stderr)
        verdicts.append(verdict)

    with session_of(engine, suite_options(engine, arguments.pytest), arguments.jobs) as session:
        if not session.judge(issues, conclude):
            raise UsageError(f"{engine!r} is not judged, since no test was run: see above")
    return verdicts[0]
