"""The campaign against false alarms as Markdown.

`honest_alarms.yaml`, in the folder of the record, maps an alarm to the reason why it was right: an
engine thought to be honest had a bug of its own. Such an alarm stays on the page and counts as no false
one; the engine is mended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from batchproof.records.texts import header, line
from batchproof.validation.yaml_nodes import read_yaml
from batchproof_lab.record_kinds import (
    CountsByDtype,
    FalseAlarm,
    HonestCounts,
    HonestRecord,
    HonestRun,
    RightAlarm,
)

RULE_OF_THREE = -math.log(0.05)  # no event in n trials: 95 % confidence that its rate is below 3.0 / n
FILE = "honest_alarms.yaml"
RULE = "the headings of alarms to reasons"
COLUMNS = [each.name for each in fields(HonestCounts)]


def honest_page(record: HonestRecord) -> str:
    lines = ["# No false alarms: honest engines before the conformance suite", ""]
    lines += record.made.lines()
    if len(record.runs) == 1:
        (run,) = record.runs
        lines += [f"* seed {run.seed}; {run.examples_per_task} examples of a property test a task"]
    lines += ["", *_verdict(record), ""]
    if len(record.runs) > 1:
        lines += ["## Runs", "", *_runs(record.runs), ""]
    lines += ["## Engines", "", *_rows(record.engines), ""]
    lines += ["## Models", "", *_rows(record.models), ""]
    lines += ["## Tests", "", *_rows(record.tests), ""]
    if record.alarms:
        lines += ["## Alarms", "", *_alarms(record.alarms)]
    if record.right:
        lines += ["## Alarms that were right", "", *_right(record.right)]
    return "\n".join(lines)


def _verdict(record: HonestRecord) -> Iterator[str]:
    if not record.is_complete:
        stopped = sum(not run.is_complete for run in record.runs)
        if len(record.runs) == 1:
            yield "INCOMPLETE: it was stopped before all workloads were judged."
        else:
            of = f"{stopped} of {len(record.runs)}"
            yield f"Runs that were stopped early: {of}. What they judged counts."
        yield ""
    count = len(record.alarms)
    judged = sum(each.workloads for each in record.totals.values())
    if count:
        yield f"ALARMS: {count}; their reports stand at the end."
    elif judged:
        yield f"No false alarm in {judged:,} workloads: with 95 % confidence fewer than one in"
        yield f"{int(judged / RULE_OF_THREE):,} workloads of such engines raises one."
    if record.right:
        yield f"Alarms that were right, about a bug of the engine's own: {len(record.right)}."
    yield ""
    yield from _rows({"all": record.totals})


def _runs(runs: Sequence[HonestRun]) -> Iterator[str]:
    yield from header("seed", "workloads", "examples a task", "made by", "on", "machine", "commit")
    for run in runs:
        made = run.made
        stopped = "" if run.is_complete else ", stopped"
        versions = ", ".join(f"{name} {number}" for name, number in made.versions.items())
        yield line(
            str(run.seed),
            f"{run.workloads:,}{stopped}",
            str(run.examples_per_task),
            f"`{made.command}`",
            made.date,
            f"{made.machine}; {versions}",
            made.commit,
        )


def _rows(rows: Mapping[str, CountsByDtype]) -> Iterator[str]:
    yield from header("", "dtype", *(name.replace("_", "-") for name in COLUMNS))
    for name, by_dtype in rows.items():
        for dtype, counts in by_dtype.items():
            shown = name.rpartition("::")[2]
            yield line(shown, dtype, *(f"{getattr(counts, each):,}" for each in COLUMNS))


def _alarms(alarms: Sequence[FalseAlarm]) -> Iterator[str]:
    for each in alarms:
        yield f"### {name_of(each)}"
        yield ""
        yield f"`{each.test}`"
        yield ""
        yield from (f"    {text}" for text in each.report.splitlines())
        yield ""


def _right(alarms: Sequence[RightAlarm]) -> Iterator[str]:
    for each in alarms:
        first, *rest = _alarms([each.alarm])
        yield from (first, "", each.why, *rest)


def with_right_alarms(record: HonestRecord, folder: Path) -> HonestRecord:
    """Sorts the alarms by what the folder's file says of them. Raises `CaseError` naming what is wrong
    in the file."""
    reasons = _reasons(folder / FILE)
    named = [(each, reasons.get(name_of(each))) for each in record.alarms]
    right = tuple(RightAlarm(each, why) for each, why in named if why is not None)
    false = tuple(each for each, why in named if why is None)
    return replace(record, alarms=false, right=(*record.right, *right))


def name_of(alarm: FalseAlarm) -> str:
    """Returns the alarm's heading on the page, its key in the file."""
    return f"{alarm.engine} on {alarm.model}, {alarm.dtype}, seed {alarm.seed}"


def _reasons(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    root, rule = read_yaml(path, "the file", RULE), f"a mapping of {RULE}"
    return {name: why.text().strip() for name, why in root.pairs(rule).items()}
