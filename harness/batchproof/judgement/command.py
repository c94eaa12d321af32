"""`python -m batchproof judge ENGINE...`: the whole suite before each engine, and a page about it."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from batchproof.campaign import choices
from batchproof.campaign.progress import Progress
from batchproof.errors import UsageError
from batchproof.judgement.findings import DEFAULT_FINDINGS, Finding, read_findings
from batchproof.judgement.index import write_index
from batchproof.judgement.page import verdict_page
from batchproof.judgement.session import Session
from batchproof.judgement.verdict import (
    Fault,
    Verdict,
    repeated,
    verdict_of,
)
from batchproof.places import ROOT
from batchproof.plugin.journal import entries
from batchproof.provenance import provenance

DEFAULT_OUTPUT = ROOT / "results" / "engines"
MOST_CHARACTERS = 80  # of a file's name
ENDED = (0, 1, 5)  # pytest's statuses of a session that ran to its end; 5: nothing was left to run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engines", nargs="+", metavar="ENGINE", help="as for pytest --engine")
    parser.add_argument(
        "--resume", action="store_true", help="go on where a judgement was stopped; without, begin anew"
    )
    parser.add_argument(
        "--pytest",
        default="",
        metavar="ARGUMENTS",
        help="more arguments of pytest in one text, such as '--dtype=bfloat16 --model=gpt2-hash -k P5'",
    )
    parser.add_argument(
        "--findings",
        type=Path,
        default=DEFAULT_FINDINGS,
        metavar="FILE",
        help="what people know about failures (default: results/engines/findings.yaml)",
    )
    choices.add_common(parser)
    parser.set_defaults(output=DEFAULT_OUTPUT)


def run(arguments: argparse.Namespace) -> int:
    """0 if every engine keeps what it was tested on, else 1; what is stopped with Ctrl-C is kept."""
    if len(set(arguments.engines)) < len(arguments.engines):
        twice = next(e for e in arguments.engines if arguments.engines.count(e) > 1)
        raise UsageError(f"{twice!r} is named twice")
    output, findings = choices.writable(arguments.output).resolve(), read_findings(arguments.findings)
    verdicts = [_judge(engine, arguments, output, findings) for engine in arguments.engines]
    return 0 if all(each.is_complete and not each.defects for each in verdicts) else 1


def _judge(
    engine: str, arguments: argparse.Namespace, output: Path, findings: Sequence[Finding]
) -> Verdict:
    session = Session(engine, _words(arguments.pytest), arguments.jobs, output / _slug(engine))
    num_tests = session.count()  # first of all: what is refused loses nobody a journal
    if arguments.resume:
        session.require_same_as_before()
    else:
        session.begin_anew()
    progress = Progress(engine, "test", num_tests, arguments.progress)
    is_complete = False
    try:
        is_complete = session.run(progress) in ENDED
    finally:  # whatever stopped it: what is done is told
        progress.close()
        verdict = _conclude(session, is_complete, output, findings)
    return verdict


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--pytest {text!r} cannot be split into arguments: {error}") from error


def _conclude(
    session: Session, is_complete: bool, output: Path, findings: Sequence[Finding]
) -> Verdict:
    verdict = verdict_of(session.engine, entries(session.journal), is_complete, findings)
    if is_complete:
        shutil.rmtree(session.folder / "reproductions", ignore_errors=True)
        with ThreadPoolExecutor(session.jobs) as pool:  # each waits for a process of its own
            faults = list(pool.map(partial(_kept, session), verdict.faults))
        verdict = replace(verdict, faults=faults)
    path = _page_of(verdict, output)
    made, again = provenance(), shlex.join(["pytest", *session.arguments])
    path.write_text(verdict_page(verdict, made, again, output), encoding="utf-8")
    facts = {
        "title": verdict.title,
        "engine": session.engine,
        "release": verdict.release,
        "held": verdict.held,
        "broken": verdict.broken,
        "differing": verdict.differing,
        "untested": verdict.untested,
        "findings": [fault.title for fault in verdict.faults],
        "totals": dict(verdict.totals),
        "precision": verdict.precision or "as the model",
        "is_complete": is_complete,
        "made": made,
    }
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    write_index(output)
    _tell(verdict, path)
    return verdict


def _tell(verdict: Verdict, path: Path) -> None:
    print(f"{verdict.title}: {len(verdict.held)} promises held", end="")
    print(f", broken: {', '.join(verdict.broken)}" if verdict.broken else "", end="")
    print("" if verdict.is_complete else "; INCOMPLETE")
    print(f"written: {path}", file=sys.stderr)


def _page_of(verdict: Verdict, output: Path) -> Path:
    """Named by its title; if another engine has that title, by its own text as well."""
    path = output / f"{_slug(verdict.title)}.json"
    if path.exists():
        other = json.loads(path.read_text(encoding="utf-8")).get("engine")
        if other != verdict.engine:
            path = output / f"{_slug(verdict.title)}-{_slug(verdict.engine)}.json"
    return path.with_suffix(".md")


def _kept(session: Session, fault: Fault) -> Fault:
    """Its script is run where its model lies, and then stands with those that the page names."""
    repeats = repeated(fault)
    if fault.script is None or (fault.finding is not None and fault.finding.script is not None):
        return replace(fault, repeats=repeats)
    kept = session.folder / "reproductions" / fault.script.name
    kept.parent.mkdir(exist_ok=True)
    shutil.copy(fault.script, kept)
    return replace(fault, repeats=repeats, script=kept)


def _slug(name: str) -> str:
    """For a file: `openvino-genai 2026.4.1` -> `openvino-genai-2026.4.1`. What is cut off, or holds
    nothing else, is told by a few digits of its hash."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")
    if 0 < len(slug) <= MOST_CHARACTERS and slug != "README":
        return slug
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{slug[:MOST_CHARACTERS]}-{digits}".strip("-")
