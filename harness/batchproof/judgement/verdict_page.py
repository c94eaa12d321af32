"""A verdict in Markdown, factual and fair to the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchproof.promises import Promise
from batchproof.records.markdown import header, line
from batchproof.records.verdict import EngineVerdict, FailureGroup, IssueRecord

NUM_TESTS_NAMED = 3
MOST_LINES_SHOWN = 40


def verdict_page(verdict: EngineVerdict) -> str:
    """Returns the page. Its links start in a folder below that of all verdicts."""
    lines = [f"# {verdict.title}", "", *_summary(verdict), ""]
    lines += [*verdict.made.lines(), f"* run of the suite: `{verdict.suite_command}`", ""]
    if verdict.conventions:
        lines += ["## Conventions and settings", "", *(f"* {each}" for each in verdict.conventions), ""]
    lines += ["## Promises", "", *_table(verdict), ""]
    if verdict.groups:
        lines += ["## What was found", ""]
    for number, group in enumerate(verdict.groups, start=1):
        lines += [*_group(number, group), ""]
    if verdict.unshown:
        lines += ["## Known, and not shown by this run", ""]
        lines += [*map(_unshown, verdict.unshown), ""]
    if verdict.skips:
        lines += ["## Not tested", "", *header("tests", "why")]
        lines += [line(str(count), reason) for reason, count in verdict.skips.items()]
        lines.append("")
    return "\n".join(lines)


def _summary(verdict: EngineVerdict) -> Iterator[str]:
    if not verdict.is_complete:
        yield "**INCOMPLETE**: it was stopped before all tests had run."
        yield ""
    if not verdict.totals.num_requests:
        yield "**Nothing was compared**: this proves nothing about the engine."
        return
    yield _in_a_sentence(verdict)
    num_silent = sum(group.num_tests for group in verdict.groups if not group.promises)
    if num_silent:
        yield ""
        names = "failure names" if num_silent == 1 else "failures name"
        yield f"**{num_silent} more {names} no promise**: the process ended, or gave no answer."
    if verdict.precision:
        yield ""
        yield (
            f"It was judged as computing in {verdict.precision}, which was declared for it: tolerances "
            f"are measured at that precision; tokens of constructed models must be right all the same."
        )
    if verdict.untested:
        yield ""
        reasons = "; the reasons are below" if verdict.skips else ""
        yield f"Not tested: {', '.join(verdict.untested)}{reasons}."


def _in_a_sentence(verdict: EngineVerdict) -> str:
    total = verdict.totals
    held, broken, differing = map(len, (verdict.held, verdict.broken, verdict.differing))
    words = f"holds {held} of the {held + broken + differing} promises it was tested on"
    if broken:
        words += f", breaks {_named(verdict.broken)}"
    if differing:
        words += f", and differs by documented conventions in {_named(verdict.differing)}"
    return (
        f"`{verdict.engine}` {words}. {total.num_requests:,} answers with {total.num_steps:,} "
        f"tokens were compared in {total.num_workloads:,} workloads; {total.num_near_ties:,} "
        f"tokens were proven near-ties, {total.num_logits:,} answers came with logits."
    )


def _named(promises: Iterable[str]) -> str:
    return ", ".join(f"{p} ({Promise[p].title})" for p in promises)


def _table(verdict: EngineVerdict) -> Iterator[str]:
    yield from header("promise", "verdict", "tests passed", "failed", "without the capability")
    for promise_id, result in verdict.promises.items():
        state = "**broken**" if result.verdict == "broken" else result.verdict
        counts = (str(result.passed), str(result.failed or ""), str(result.no_cap or ""))
        yield line(f"{Promise[promise_id]}", state, *counts)


def _group(number: int, group: FailureGroup) -> Iterator[str]:
    yield f"### {number}. {group.title}"
    yield ""
    if group.issue is not None:
        yield from _issue(group.issue)
    more = max(0, len(group.tests) - NUM_TESTS_NAMED) + group.num_unnamed
    names = ", ".join(f"`{each}`" for each in group.tests[:NUM_TESTS_NAMED])
    models = f" on {', '.join(group.models)}" if group.models else ""
    yield (
        f"Found in {group.num_tests} test{'s' * (group.num_tests > 1)}{models}, of "
        f"{names}{f' and {more} more' if more else ''}. The shortest of them, `{group.shown_test}`:"
    )
    yield ""
    yield "```text"
    lines = group.shown_report.splitlines()
    yield from lines[:MOST_LINES_SHOWN]
    if len(lines) > MOST_LINES_SHOWN:
        yield f"... and {len(lines) - MOST_LINES_SHOWN} more lines"
    yield "```"
    if group.replays or (group.failure and group.failure.replay):
        yield ""
        yield _replays(group)


def _issue(issue: IssueRecord) -> Iterator[str]:
    kind = "A documented convention" if issue.is_documented else "A defect"
    yield f"{kind}. {issue.cause}"
    yield ""
    if issue.threads:
        yield f"In public: {', '.join(issue.threads)}."
        yield ""
    elif not issue.is_documented:
        yield "No public thread is known to us."
        yield ""
    if issue.scripts:
        yield f"With the library alone: {_links(issue)}."
        yield ""


def _links(issue: IssueRecord) -> str:
    return ", ".join(f"[{each.rpartition('/')[2]}](../{each})" for each in issue.scripts)


def _unshown(issue: IssueRecord) -> str:
    scripts = [f"With the library alone: {_links(issue)}."] if issue.scripts else []
    return " ".join([f"* {issue.title}. {issue.cause}", *issue.threads, *scripts])


def _replays(group: FailureGroup) -> str:
    path = group.failure.replay if group.failure else None
    where = f"[{path.rpartition('/')[2]}]({path}), " if path else ""
    became = " and ".join(group.replays) or "not run"
    return f"Run again alone: {where}{became}."
