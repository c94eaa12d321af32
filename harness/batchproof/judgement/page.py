"""A verdict in Markdown: plain, and fair to the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchproof.campaign.markdown import header, line
from batchproof.judgement.verdict import UNSAID, Fault, Verdict
from batchproof.promises import Promise
from batchproof.provenance import as_lines

NUM_TESTS_NAMED = 3
MOST_LINES_TOLD = 40


def verdict_page(verdict: Verdict, made: dict[str, Any], again: str, folder: Path) -> str:
    """`again`: the command that repeats it. Scripts are named as seen from `folder`."""
    lines = [f"# {verdict.title}", "", *_summary(verdict), ""]
    lines += [*as_lines(made), f"* the suite's run: `{again}`", ""]
    if verdict.conventions:
        lines += ["## Conventions and settings", "", *(f"* {each}" for each in verdict.conventions), ""]
    lines += ["## Promises", "", *_table(verdict), ""]
    if verdict.faults:
        lines += ["## What was found", ""]
    for number, fault in enumerate(verdict.faults, start=1):
        lines += [*_fault(number, fault, folder), ""]
    if verdict.unshown:
        lines += ["## Known, and not shown by this run", ""]
        lines += [
            " ".join([f"* {each.title}. {each.cause}", *each.threads]) for each in verdict.unshown
        ]
        lines.append("")
    if verdict.skips:
        lines += ["## Not tested", "", *header("tests", "why")]
        lines += [line(str(count), reason) for reason, count in verdict.skips.most_common()]
        lines.append("")
    return "\n".join(lines)


def _summary(verdict: Verdict) -> Iterator[str]:
    if not verdict.is_complete:
        yield "**INCOMPLETE**: it was stopped before all tests had run."
        yield ""
    total = verdict.totals
    held, broken, differing = map(len, (verdict.held, verdict.broken, verdict.differing))
    if not total["num_requests"]:
        yield "**Nothing was compared**: this proves nothing about the engine."
        return
    words = f"holds {held} of the {held + broken + differing} promises it was tested on"
    if broken:
        words += f", breaks {_named(verdict.broken)}"
    if differing:
        words += f", and differs by documented conventions in {_named(verdict.differing)}"
    yield (
        f"`{verdict.engine}` {words}. {total['num_requests']:,} answers with {total['num_steps']:,} "
        f"tokens were compared in {total['num_workloads']:,} workloads; {total['num_near_ties']:,} "
        f"tokens were proven near-ties, {total['num_logits']:,} answers came with logits."
    )
    unsaid = [fault for fault in verdict.faults if UNSAID in fault.promises]
    if unsaid:
        num_tests = sum(fault.num_tests for fault in unsaid)
        yield ""
        yield f"**{num_tests} more failures name no promise**: the process ended, or gave no answer."
    if verdict.precision:
        yield ""
        yield (
            f"It was judged as computing in {verdict.precision}, which was declared for it: tokens of "
            f"constructed models must be right all the same; elsewhere rounding is measured in that."
        )
    if verdict.untested:
        yield ""
        reasons = "; the reasons are below" if verdict.skips else ""
        yield f"Not tested: {', '.join(verdict.untested)}{reasons}."


def _listed(models: tuple[str, ...]) -> str:
    return ", ".join(models) or "no model"


def _named(promises: list[str]) -> str:
    return ", ".join(f"{p} ({Promise[p].title})" for p in promises)


def _table(verdict: Verdict) -> Iterator[str]:
    yield from header("promise", "verdict", "tests passed", "failed", "without the capability")
    for promise_id, (text, count) in verdict.cells.items():
        state = (
            "**broken**"
            if promise_id in verdict.broken
            else "differs by design"
            if promise_id in verdict.differing
            else "held"
            if count["passed"]
            else text
        )
        others = str(count["no cap"] or "")
        yield line(
            f"{Promise[promise_id]}", state, str(count["passed"]), str(count["failed"] or ""), others
        )


def _fault(number: int, fault: Fault, folder: Path) -> Iterator[str]:
    yield f"### {number}. {fault.title}"
    yield ""
    if fault.finding is not None:
        kind = "A documented convention" if fault.is_documented else "A defect"
        yield f"{kind}. {fault.finding.cause}"
        yield ""
        threads = fault.finding.threads
        if threads or not fault.is_documented:
            yield f"In public: {', '.join(threads)}." if threads else "No public thread is known to us."
            yield ""
    more = len(fault.functions) - NUM_TESTS_NAMED
    names = ", ".join(f"`{each}`" for each in fault.functions[:NUM_TESTS_NAMED])
    yield (
        f"Found in {fault.num_tests} test{'s' * (fault.num_tests > 1)} on {_listed(fault.models)}, of "
        f"{names}{f' and {more} more' if more > 0 else ''}. The shortest of them, `{fault.test}`:"
    )
    yield ""
    yield "```text"
    lines = fault.told.splitlines()
    yield from lines[:MOST_LINES_TOLD]
    if len(lines) > MOST_LINES_TOLD:
        yield f"... and {len(lines) - MOST_LINES_TOLD} more lines"
    yield "```"
    yield ""
    if fault.script is None:
        yield "There is no script for it."
    else:
        repeats = " and ".join(fault.repeats) or "not run"
        yield f"Reproduction: `{os.path.relpath(fault.script, folder)}`; run alone: {repeats}."
