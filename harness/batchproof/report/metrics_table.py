"""The table of figures of one comparison, a column per engine, with the reason for each dash below
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.report import words
from batchproof.report.rows import Data, is_shown, schedule
from batchproof.report.table_values import Chip, Row, Table, TableCell

VERDICTS = {VALID: "good", INVALID: "bad", UNVERIFIED: "warn"}
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
Show = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class MetricLine:
    """One figure: its name with unit, its group, how it is read from a row, and how it is formatted."""

    group: str
    title: str
    of: Callable[[Data], Any]
    show: Show = words.number


def _metric(key: str) -> Callable[[Data], Any]:
    return lambda row: row["metrics"].get(key)


def _scheduled(key: str) -> Callable[[Data], Any]:
    return lambda row: schedule(row).get(key)


def roofline(key: str) -> Callable[[Data], Any]:
    """Returns how a figure of the roofline is read from a row."""
    return lambda row: (schedule(row).get("roofline") or {}).get(key)


def latency(name: str) -> Callable[[Data], Any]:
    """Returns how median and 99th percentile of a latency are read from a row: both, or None."""

    def read(row: Data) -> tuple[float, float] | None:
        metrics = row["metrics"]
        values = metrics.get(f"median_{name}_ms"), metrics.get(f"p99_{name}_ms")
        return None if None in values else values

    return read


def pair(values: tuple[float, float] | None) -> str:
    """Returns the two as text, or the dash."""
    return words.UNDEFINED if values is None else " / ".join(words.number(each) for each in values)


PADDING, MEMORY = "fed tokens that are padding", "most memory beyond the start's"
AT_ONCE = "requests served at once, at least"
RATES, TIMES, SCHEDULE = "throughput, per second", "latency, ms: median / p99", "schedule"
RESOURCES, ROOFLINE, START = "resources", "roofline", "start, apart, s"
LINES = (
    MetricLine(RATES, "output tokens, wall time", _metric("output_throughput")),
    MetricLine(RATES, "output tokens, process time", _metric("output_tokens_per_process_s")),
    MetricLine(RATES, "all tokens, wall time", _metric("total_token_throughput")),
    MetricLine(RATES, "requests, wall time", _metric("request_throughput")),
    *(MetricLine(TIMES, f"{title} ({name})", latency(name), pair) for name, title in LATENCIES.items()),
    MetricLine(SCHEDULE, "steps", _scheduled("num_steps"), words.count),
    MetricLine(SCHEDULE, "mean batch", _scheduled("mean_batch")),
    MetricLine(SCHEDULE, "slots occupied", _scheduled("occupancy"), words.share),
    MetricLine(SCHEDULE, PADDING, _scheduled("padding_waste"), words.share),
    MetricLine(RESOURCES, "cores: CPU time / wall time", lambda row: row.get("cores")),
    MetricLine(RESOURCES, AT_ONCE, lambda row: row.get("num_at_once"), words.count),
    MetricLine(RESOURCES, MEMORY, _scheduled("peak_memory_bytes"), words.size),
    MetricLine(ROOFLINE, "share of it reached", roofline("share"), words.share),
    MetricLine(ROOFLINE, "bound by", roofline("bound"), lambda bound: bound or words.UNDEFINED),
    MetricLine(START, "building the engine", lambda row: row.get("build_s")),
    MetricLine(START, "first round, warm-up", lambda row: row.get("first_round_s")),
)
WHY_NONE = {
    MEMORY: "not to be measured on this system",
    AT_ONCE: "only an engine that is stepped shows it",
    PADDING: "no hook on the model saw what was fed",
}
WHY_NO_ROOFLINE = (
    "none without a trace, for a model whose operations are not simply counted, or where requests "
    "arrive over time"
)


class Notes:
    """Numbers each reason once, from 1."""

    def __init__(self) -> None:
        self._reasons: dict[str, int] = {}

    def number(self, reason: str) -> int:
        return self._reasons.setdefault(reason, len(self._reasons) + 1)

    def listed(self) -> tuple[str, ...]:
        """Returns the reasons in the order of their numbers."""
        return tuple(self._reasons)


def metrics_table(rows: Sequence[Data], label: str) -> Table:
    """Returns the table of the rows of one comparison."""
    notes = Notes()
    chips = [Chip(row["verdict"], VERDICTS.get(row["verdict"], "none")) for row in rows]
    body = [Row("verdict", tuple(TableCell("", chip=chip) for chip in chips))]
    group = ""
    for line in LINES:
        values = [line.of(row) if is_shown(row) else None for row in rows]
        if line.group != group:
            group = line.group
            body.append(Row(group))
        cells = (_cell(row, line, value, notes) for row, value in zip(rows, values, strict=True))
        body.append(Row(line.title, tuple(cells)))
    head = ("", *(row["engine"] for row in rows))
    return Table(label, head, tuple(body), notes.listed())


def _cell(row: Data, line: MetricLine, value: Any, notes: Notes) -> TableCell:
    if value is None:
        return TableCell(words.UNDEFINED, "none", note=notes.number(_why(row, line)))
    return TableCell(line.show(value))


def _why(row: Data, line: MetricLine) -> str:
    if not is_shown(row):
        return f"{row['verdict']}: no figure is shown"
    if line.group == TIMES:
        if row["interface"] != "stepping":
            return "only an engine that is stepped shows when a token comes"
        needs_two = line.title.endswith(("(tpot)", "(itl)"))
        return "no answer has two tokens" if needs_two else "not measured"
    if line.title in WHY_NONE:
        return WHY_NONE[line.title]
    if line.group == SCHEDULE:
        return "the engine shows no trace"
    return WHY_NO_ROOFLINE if line.group == ROOFLINE else "not measured"


def unwell(rows: Sequence[Data]) -> Mapping[str, str]:
    """Returns verdict and reason of each engine that is not VALID."""
    return {
        row["engine"]: f"{row['verdict']}: {row.get('reason') or 'no reason is given'}"
        for row in rows
        if row.get("verdict", VALID) != VALID
    }
