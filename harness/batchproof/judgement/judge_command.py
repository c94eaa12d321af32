"""`python -m batchproof judge ENGINE...`: runs the whole suite on each engine and writes a page about
it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.option_names import NO_CONFIG
from batchproof.cli.progress import Progress
from batchproof.errors import UsageError
from batchproof.judgement.index import write_index
from batchproof.judgement.issues import DEFAULT_ISSUES, KnownIssue, read_issues
from batchproof.judgement.output import running_folder, shard_folders, written
from batchproof.judgement.replays import replayed
from batchproof.judgement.session import Session
from batchproof.places import ROOT
from batchproof.plugin.scoring import SET
from batchproof.records.journal import entries
from batchproof.records.provenance import made_now
from batchproof.records.verdict import Conditions, EngineVerdict, FailureGroup
from batchproof.requirements.sets import load
from batchproof.requirements.verdict_of_journal import Asked, verdict_of

DEFAULT_OUTPUT = ROOT / "results" / "engines"
ENDED = (0, 1, 5)  # pytest's statuses of a session that ran to its end; 5: nothing was left to run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"engines to judge, as for pytest --engine (default: those of {OWN})")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a judgement that was stopped, or add up its shards; otherwise begin anew, since "
        "an engine may have changed unseen",
    )
    parser.add_argument(
        SET,
        metavar="SET",
        help="judge by a dated set of requirements, on its models (default: all tests on all models)",
    )
    choices.add_shard(parser)
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help="more arguments of pytest in one text, such as '--dtype=bfloat16 --model=gpt2-hash -k P5'",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=DEFAULT_ISSUES,
        metavar="FILE",
        help="what is known of failures (default: results/engines/findings.yaml)",
    )
    choices.add_common(parser)
    parser.set_defaults(output=DEFAULT_OUTPUT)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine keeps what it was tested on, else 1. Ctrl-C keeps what is done.
    Raises `UsageError`.
    """
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
    folder = running_folder(output, engine, arguments.shard)
    options = _words(arguments.pytest)
    asked = load(arguments.requirements) if arguments.requirements else None
    if asked is not None:
        options.append(f"{SET}={asked.name}")
    elif not any(each.startswith("--model") for each in options):
        options.append("--model=all")
    if find():  # a page is about the whole suite, and expects no failure
        options.insert(0, NO_CONFIG)
    session = Session(engine, options, arguments.jobs, folder, arguments.shard, asked)
    num_tests = session.count()  # first of all: what is refused costs no journal
    shards = shard_folders(output, engine) if arguments.shard.number == 1 else []
    if not arguments.resume:
        session.begin_anew()
    elif shards and not folder.exists():
        session.add_up(shards)
    else:
        session.require_same_as_before()
    progress = Progress(engine, "test", num_tests, arguments.progress)
    is_complete = False
    try:
        is_complete = session.run(progress) in ENDED
    finally:  # whatever stopped it: what is done is written
        progress.close()
        verdict = _conclude(session, is_complete, output, issues)
    return verdict


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--pytest {text!r} cannot be split into arguments: {error}") from error


def _conclude(
    session: Session, is_complete: bool, output: Path, issues: Sequence[KnownIssue]
) -> EngineVerdict:
    command = shlex.join(["pytest", *session.arguments])
    found = entries(session.journal)
    options = (each for each in session.options if not each.startswith(f"{SET}="))
    asked = Asked(command, session.requirements, Conditions(tuple(options)))
    verdict = verdict_of(session.engine, found, is_complete, made_now(), asked, issues)
    if session.shard.number > 1:
        _print(verdict, session.journal)
        return verdict
    if is_complete:
        with ThreadPoolExecutor(session.jobs) as pool:  # each waits for a process of its own
            verdict = replace(verdict, groups=tuple(pool.map(_with_replays, verdict.groups)))
    path = written(verdict, output)
    write_index(output)
    _print(verdict, path)
    return verdict


def _with_replays(group: FailureGroup) -> FailureGroup:
    if group.failure is None or group.failure.replay is None:
        return group
    return replace(group, replays=replayed(Path(group.failure.replay)))


def _print(verdict: EngineVerdict, path: Path) -> None:
    print(f"{verdict.title}: {len(verdict.held)} promises held", end="")
    print(f", broken: {', '.join(verdict.broken)}" if verdict.broken else "", end="")
    print("" if verdict.is_complete else "; INCOMPLETE")
    print(f"written: {path}", file=sys.stderr)
