"""A verdict in Markdown, factual and fair to the engine."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.records.texts import header, line
from batchproof.records.verdict import EngineVerdict, FailureGroup, IssueRecord
from batchproof.requirements.promises import Promise
from batchproof.site.verdict_summary import Paragraph, summary

NUM_TESTS_NAMED = 3
MOST_LINES_SHOWN = 40


def verdict_page(verdict: EngineVerdict) -> str:
    """Returns the page. Its links start in a folder below that of all verdicts."""
    lines = [f"# {verdict.title}", ""]
    for each in summary(verdict):
        lines += [_paragraph(each), ""]
    lines += [*verdict.made.lines(), f"* run of the suite: `{verdict.suite_command}`"]
    lines.append(f"* suite: version {verdict.suite.version}, digest {verdict.suite.digest}")
    if (asked := verdict.requirement_set) is not None:
        lines.append(f"* requirement set: {asked.name} of {asked.date}, digest {asked.digest}")
    lines.append("")
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


def _paragraph(each: Paragraph) -> str:
    mark = "`" if each.is_code else "**" if each.lead else ""
    return f"{mark}{each.lead}{mark}{each.text}"


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
    more = max(0, len(group.tests) - NUM_TESTS_NAMED)
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
