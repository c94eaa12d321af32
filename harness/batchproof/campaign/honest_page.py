"""The campaign against false alarms as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchproof.campaign.markdown import header, line
from batchproof.campaign.watches import COUNTED
from batchproof.provenance import as_lines

Data = Mapping[str, Any]


def honest_page(data: Data) -> str:
    lines = ["# No false alarms: honest engines before the conformance suite", ""]
    lines += as_lines(data["made"])
    lines += [f"* seed {data['seed']}; {data['examples_per_task']} examples of a property test a task"]
    lines += ["", *_verdict(data), ""]
    for part in ("engines", "models", "tests"):
        lines += [f"## {part.capitalize()}", "", *_rows(data[part]), ""]
    if data["alarms"]:
        lines += ["## Alarms", "", *_alarms(data["alarms"])]
    return "\n".join(lines)


def _verdict(data: Data) -> Iterator[str]:
    if not data["is_complete"]:
        yield "INCOMPLETE: it was stopped before all workloads were judged."
        yield ""
    count = len(data["alarms"])
    yield "No alarm." if not count else f"ALARMS: {count}; their reports stand at the end."
    yield ""
    yield from _rows({"all": data["totals"]})


def _rows(rows: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[str]:
    yield from header("", "dtype", "tasks", *(name.replace("_", "-") for name in COUNTED))
    for name, by_dtype in rows.items():
        for dtype, counts in by_dtype.items():
            shown = name.rpartition("::")[2]
            yield line(shown, dtype, *(f"{counts[each]:,}" for each in ("tasks", *COUNTED)))


def _alarms(alarms: list[Data]) -> Iterator[str]:
    for each in alarms:
        yield f"### {each['engine']} on {each['model']}, {each['dtype']}, seed {each['seed']}"
        yield ""
        yield f"`{each['test']}`"
        yield ""
        yield from (f"    {text}" for text in each["report"].splitlines())
        yield ""
