"""A verdict in Markdown: plain, and fair to the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.campaign.markdown import header, line
from harness.judgement.verdict import Fault, Verdict
from harness.promises import Promise
from harness.provenance import as_lines


def verdict_page(verdict: Verdict, made: dict[str, Any], again: str, folder: Path) -> str:
    """`again`: the command that repeats it. Scripts are named as seen from `folder`."""
    lines = [f"# {verdict.release or verdict.engine}", "", *_summary(verdict), ""]
    lines += [*as_lines(made), f"* again: `{again}`", "", "## Promises", "", *_table(verdict), ""]
    if verdict.faults:
        lines += ["## What was found", ""]
    for number, fault in enumerate(verdict.faults, start=1):
        lines += [*_fault(number, fault, folder), ""]
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
    held, broken = len(verdict.held), len(verdict.broken)
    if not total["num_requests"]:
        yield "**Nothing was compared**: this proves nothing about the engine."
        return
    words = f"holds {held} of the {held + broken} promises it was tested on"
    if broken:
        words += f", and breaks {', '.join(f'{p} ({Promise[p].title})' for p in verdict.broken)}"
    yield (
        f"`{verdict.engine}` {words}. {total['num_requests']:,} answers with {total['num_steps']:,} "
        f"tokens were compared in {total['num_workloads']:,} workloads; {total['num_near_ties']:,} "
        f"tokens were proven near-ties, {total['num_logits']:,} answers came with logits."
    )
    if verdict.untested:
        yield ""
        reasons = "; the reasons are below" if verdict.skips else ""
        yield f"Not tested: {', '.join(verdict.untested)}{reasons}."


def _table(verdict: Verdict) -> Iterator[str]:
    yield from header("promise", "verdict", "tests passed", "failed", "without the capability")
    for promise_id, (text, count) in verdict.cells.items():
        state = "**broken**" if count["failed"] else "held" if count["passed"] else text
        others = str(count["no cap"] or "")
        yield line(
            f"{Promise[promise_id]}", state, str(count["passed"]), str(count["failed"] or ""), others
        )


def _fault(number: int, fault: Fault, folder: Path) -> Iterator[str]:
    yield f"### {number}. {fault.title}"
    yield ""
    yield f"Found by `{fault.function}` in {len(fault.tests)} tests, first `{fault.tests[0]}`."
    yield ""
    yield "```text"
    yield from fault.told.splitlines()
    yield "```"
    if fault.script is not None:
        yield ""
        repeats = " and ".join(fault.repeats) or "not run"
        yield f"Reproduction: `{os.path.relpath(fault.script, folder)}`; run alone: {repeats}."
