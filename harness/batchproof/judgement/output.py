"""Where verdicts lie: a folder for each engine and release, which holds no path of this machine; and
the sentences of their pages.

README.md                              one line for each verdict
<release>/verdict.md, verdict.json     the page, and the record it is made of
<release>/failures/*.json              the failures that the page shows, to be run again
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from batchproof.records import matrix
from batchproof.records.file_kinds import replace_text
from batchproof.records.texts import counted, header, line, slug, some_of, without_machine_paths
from batchproof.records.verdict import (
    VERDICT,
    EngineVerdict,
    FailureGroup,
    IssueRecord,
    PromiseResult,
    Verdict,
)
from batchproof.requirements.promises import Promise
from batchproof.requirements.verdict_of_journal import without_local_paths


def summary(verdict: EngineVerdict) -> Iterator[str]:
    """Yields what a reader has to know before all figures: paragraphs of Markdown."""
    if not verdict.is_complete:
        yield "**INCOMPLETE**: not all tests were run: it was stopped, or options selected some."
    if not verdict.totals.num_requests:
        yield "**Nothing was compared**: this proves nothing about the engine."
        return
    yield f"`{verdict.engine}` {_kept(verdict)}. {_compared(verdict)}"
    num_silent = sum(group.num_tests for group in verdict.groups if not group.promises)
    if num_silent:
        names = "failure names" if num_silent == 1 else "failures name"
        yield f"**{num_silent} more {names} no promise**: the process ended, or gave no answer."
    if verdict.precision:
        yield (
            f"It was judged as computing in {verdict.precision}, which was declared for it: tolerances "
            f"are measured at that precision; tokens of constructed models must be right all the same."
        )
    if num_refused := [*verdict.outcomes.values()].count("refused"):
        yield f"{num_refused:,} tests on models that it refuses were not run."
    if verdict.untested:
        reasons = "; the reasons are below" if verdict.skips else ""
        yield f"Not tested: {', '.join(verdict.untested)}{reasons}."


def _kept(verdict: EngineVerdict) -> str:
    held, broken, differing = map(len, (verdict.held, verdict.broken, verdict.differing))
    words = f"holds {held} of the {held + broken + differing} promises it was tested on"
    if broken:
        words += f", breaks {_named(verdict.broken)}"
    if differing:
        words += f", and differs by documented conventions in {_named(verdict.differing)}"
    return words


def _compared(verdict: EngineVerdict) -> str:
    """Returns what was compared, what happened by trace or the engine's count, and how long it took."""
    total = verdict.totals
    told = (
        f"{total.num_requests:,} answers with {total.num_steps:,} tokens were compared in "
        f"{total.num_workloads:,} workloads; {total.num_near_ties:,} tokens were proven near-ties, "
        f"{total.num_logits:,} answers came with logits."
    )
    if total.counters:
        counts = ", ".join(f"{number:,} {what}" for what, number in total.counters.items())
        told += f" Counted: {counts}."
    if total.seconds:
        took, share = f"{total.seconds / 60:.0f} min", total.engine_seconds / total.seconds
        told += f" The tests took {took} in all processes together, {share:.0%} of it the engine's."
    return told


def _named(promises: Iterable[str]) -> str:
    return ", ".join(f"{each} ({Promise[each].title})" for each in promises)


RECORD, PAGE, FAILURES = "verdict.json", "verdict.md", "failures"
# What became of a failure that was run again, alone, when its file was written.
REPLAY_WORDS = {True: "reproduced", False: "not reproduced", None: "not run, as it hangs"}
HEAD = """# Verdicts

Each line is the verdict on one engine. Its folder holds the page, the same as `verdict.json`, and the
failure files that the page names.
"""


def write_verdict(verdict: EngineVerdict, folder: Path, depth: int = 1) -> Path:
    """Writes record, page and failure files into a folder, replacing an older verdict. `depth`: of the
    folder below that of all verdicts. Returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / FAILURES, ignore_errors=True)
    groups = tuple(_with_copied_failure(group, folder) for group in verdict.groups)
    clean = without_local_paths(replace(verdict, groups=groups))
    VERDICT.write(clean, folder / RECORD)
    replace_text(folder / PAGE, verdict_page(clean, depth))
    return folder / PAGE


def folder_of(verdict: EngineVerdict, output: Path) -> Path:
    """Returns the folder named by the verdict's title and, if another engine has that title, by the
    engine's text as well."""
    folder = output / slug(verdict.title)
    path = folder / RECORD
    if path.exists() and VERDICT.read(path).engine != verdict.engine:
        return output / f"{slug(verdict.title)}-{slug(verdict.engine)}"
    return folder


def _with_copied_failure(group: FailureGroup, folder: Path) -> FailureGroup:
    """Copies the failure file of a group into the verdict's folder and returns the group with the new
    path, and with what became of the failure when it was run again."""
    if group.failure is None or group.failure.replay is None:
        return group
    source = Path(group.failure.replay)
    copy = folder / FAILURES / source.name
    copy.parent.mkdir(exist_ok=True)
    text = without_machine_paths(source.read_text(encoding="utf-8"))  # an error may quote one
    copy.write_text(text, encoding="utf-8")
    return replace(
        group,
        failure=replace(group.failure, replay=f"{FAILURES}/{source.name}"),
        replays=(REPLAY_WORDS[json.loads(text)["is_shown_again"]],),
        shown_report=group.shown_report.replace(str(source), str(copy)),
    )


def write_index(folder: Path) -> None:
    """Writes the table of all verdicts into the folder, below the head that its page has."""
    page = folder / "README.md"
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    head, has_table, _ = before.partition("\n| engine |")
    replace_text(page, "\n".join([head if has_table else HEAD, *index_table(folder), ""]))


SIGNS: Mapping[Verdict, str] = {
    "held": "✓",
    "broken": "✗",
    "differs by design": "≈",
    "known failures": "≈",
    "incomplete": "?",
    "undecided": "?",
}
LEGEND = (
    "✓ held; ✗ broken; ≈ differs by a documented convention; ? not decided: a test of it was ended by "
    "another promise that broke, on every model; empty: not tested, for lack of a capability or model."
)


def index_table(folder: Path) -> Iterator[str]:
    """Yields a line in Markdown for the verdict of each judgement that was not stopped, with a sign for
    each promise, and what the signs mean."""
    yield from header("engine", "judged", "answers", *(each.id for each in Promise))
    found = [(p, VERDICT.read(p)) for p in sorted(folder.glob(f"*/{RECORD}"))]
    incomplete = [f"[{v.title}]({p.parent.name}/{PAGE})" for p, v in found if not v.is_complete]
    for path, verdict in found:
        if verdict.is_complete:
            yield line(
                f"[{verdict.title}]({path.parent.name}/{PAGE})",
                verdict.made.date[:10],
                f"{verdict.totals.num_requests:,}",
                *signs_of(verdict.promises),
            )
    if incomplete:
        yield from ("", f"Not listed, since not all tests were run: {', '.join(incomplete)}.")
    yield from ("", LEGEND, "", *(f"* {each.id} {each.title}" for each in Promise))
    matrices = sorted((folder / matrix.MATRICES).glob(f"*/{matrix.MATRIX_FILE}"))
    if matrices:
        yield from [
            "",
            "## Configurations and releases",
            "",
            *header("engine", "judged", "cells", "answers"),
        ]
    for path in matrices:
        judged = matrix.MATRIX.read(path)
        name = f"{judged.engine}, releases" if judged.is_ordered else judged.engine
        yield line(
            f"[{name}]({matrix.MATRICES}/{path.parent.name}/{matrix.PAGE})",
            judged.made.date[:10],
            str(len(judged.cells)),
            f"{sum(each.num_requests for each in judged.cells):,}",
        )


def signs_of(promises: Mapping[str, PromiseResult]) -> Iterator[str]:
    """Yields the sign of each promise, in their order; nothing is said of one that was not asked."""
    for each in Promise:
        result = promises.get(each.id)
        yield "" if result is None else SIGNS.get(result.verdict, "")


MOST_LINES_SHOWN = 40


def verdict_page(verdict: EngineVerdict, depth: int = 1) -> str:
    """Returns the page. Its links start in a folder so far below that of all verdicts."""
    above = "../" * depth
    lines = [f"# {verdict.title}", ""]
    for each in summary(verdict):
        lines += [each, ""]
    lines += [*verdict.made.lines(), f"* run of the suite: `{verdict.suite_command}`"]
    lines.append(f"* suite: version {verdict.suite.version}, digest {verdict.suite.digest}")
    lines.append("")
    if verdict.conventions:
        lines += ["## Conventions and settings", "", *(f"* {each}" for each in verdict.conventions), ""]
    lines += ["## Promises", "", *_table(verdict), ""]
    if verdict.groups:
        lines += ["## What was found", ""]
    for number, group in enumerate(verdict.groups, start=1):
        lines += [*_group(number, group, above), ""]
    if verdict.unshown:
        lines += ["## Known, and not shown by this run", ""]
        lines += [f"* {each.title}. {' '.join(_issue(each, above))}" for each in verdict.unshown]
        lines.append("")
    if verdict.skips:
        lines += ["## Not tested", "", *header("tests", "why")]
        lines += [line(str(count), reason) for reason, count in verdict.skips.items()]
        lines.append("")
    return "\n".join(lines)


def _table(verdict: EngineVerdict) -> Iterator[str]:
    yield from header("promise", "verdict", "tests passed", "failed", "without the capability")
    for promise_id, result in verdict.promises.items():
        state = "**broken**" if result.verdict == "broken" else result.verdict
        counts = (str(result.passed), str(result.failed or ""), str(result.no_cap or ""))
        yield line(f"{Promise[promise_id]}", state, *counts)


def _group(number: int, group: FailureGroup, above: str) -> Iterator[str]:
    yield f"### {number}. {group.title}"
    yield ""
    for each in _issue(group.issue, above) if group.issue else ():
        yield from (each, "")
    models = f" on {', '.join(group.models)}" if group.models else ""
    yield (
        f"Found in {counted(group.num_tests, 'test')}{models}, of {some_of(group.tests)}. "
        f"The shortest of them, `{group.shown_test}`:"
    )
    yield ""
    yield "```text"
    lines = group.shown_report.splitlines()
    yield from lines[:MOST_LINES_SHOWN]
    if len(lines) > MOST_LINES_SHOWN:
        yield f"... and {len(lines) - MOST_LINES_SHOWN} more lines"
    yield "```"
    if group.failure and (path := group.failure.replay):
        became = " and ".join(group.replays) or "not run"
        yield ""
        yield f"Run again alone: [{path.rpartition('/')[2]}]({path}), {became}."


def _issue(issue: IssueRecord, above: str) -> Iterator[str]:
    """Yields what is known of a failure, in paragraphs."""
    yield f"{'A documented convention' if issue.is_documented else 'A defect'}. {issue.cause}"
    if issue.threads:
        yield f"In public: {', '.join(issue.threads)}."
    elif not issue.is_documented:
        yield "No public thread is known to us."
    if issue.scripts:
        links = (f"[{each.rpartition('/')[2]}]({above}{each})" for each in issue.scripts)
        yield f"With the library alone: {', '.join(links)}."
