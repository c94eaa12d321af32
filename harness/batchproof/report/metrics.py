"""The table of figures of one comparison: a column an engine. A dash has its reason below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.report import markup, words
from batchproof.report.rows import Data, is_shown, schedule

VERDICTS = {VALID: "good", INVALID: "bad", UNVERIFIED: "warn"}
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
Show = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: its name with unit, its group, where it stands in a row, how it reads."""

    group: str
    title: str
    of: Callable[[Data], Any]
    show: Show = words.number
    is_optional: bool = False  # left out if no engine has it


def _metric(key: str) -> Callable[[Data], Any]:
    return lambda row: row["metrics"].get(key)


def _scheduled(key: str) -> Callable[[Data], Any]:
    return lambda row: schedule(row).get(key)


def _roofline(key: str) -> Callable[[Data], Any]:
    return lambda row: (schedule(row).get("roofline") or {}).get(key)


def _latency(name: str) -> Callable[[Data], Any]:
    def pair(row: Data) -> tuple[float, float] | None:
        metrics = row["metrics"]
        values = metrics.get(f"median_{name}_ms"), metrics.get(f"p99_{name}_ms")
        return None if None in values else values

    return pair


def _pair(values: tuple[float, float] | None) -> str:
    return words.UNDEFINED if values is None else " / ".join(words.number(each) for each in values)


LINES = (
    Line("throughput, per second", "output tokens, wall time", _metric("output_throughput")),
    Line(
        "throughput, per second", "output tokens, process time", _metric("output_tokens_per_process_s")
    ),
    Line("throughput, per second", "all tokens, wall time", _metric("total_token_throughput")),
    Line("throughput, per second", "requests, wall time", _metric("request_throughput")),
    Line(
        "throughput, per second",
        "goodput: requests in limits",
        _metric("request_goodput"),
        is_optional=True,
    ),
    Line(
        "throughput, per second",
        "share of requests in limits",
        _metric("goodput_share"),
        words.share,
        True,
    ),
    *(
        Line("latency, ms: median / p99", f"{title} ({name})", _latency(name), _pair)
        for name, title in LATENCIES.items()
    ),
    Line("schedule", "steps", _scheduled("num_steps"), words.count),
    Line("schedule", "mean batch", _scheduled("mean_batch")),
    Line("schedule", "slots occupied", _scheduled("occupancy"), words.share),
    Line("schedule", "fed tokens that are padding", _scheduled("padding_waste"), words.share),
    Line("schedule", "most memory beyond the start's", _scheduled("peak_memory_bytes"), words.size),
    Line("roofline", "share of it reached", _roofline("share"), words.share),
    Line("roofline", "bound by", _roofline("bound"), lambda bound: bound or words.UNDEFINED),
    Line("start, apart, s", "building the engine", lambda row: row.get("build_s")),
    Line("start, apart, s", "first round, warm-up", lambda row: row.get("first_round_s")),
)


class Notes:
    """Numbered reasons, each told once."""

    def __init__(self) -> None:
        self._reasons: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        number = self._reasons.setdefault(reason, len(self._reasons) + 1)
        return markup.element("sup", str(number))

    def shown(self) -> str:
        told = [
            f"{markup.element('sup', str(n))} {markup.text(why)}" for why, n in self._reasons.items()
        ]
        return markup.paragraph("; ".join(told) + ".", class_="notes") if told else ""


def metrics_table(rows: Sequence[Data], label: str) -> str:
    notes = Notes()
    body: list[list[str]] = [_verdicts(rows)]
    group = ""
    for line in LINES:
        values = [line.of(row) if is_shown(row) else None for row in rows]
        if line.is_optional and all(value is None for value in values):
            continue
        if line.group != group:
            group = line.group
            heading = markup.element("th", markup.text(group), scope="rowgroup")
            body.append([heading, *([markup.cell("")] * len(rows))])
        cells = [_cell(row, line, value, notes) for row, value in zip(rows, values, strict=True)]
        body.append([markup.row_head(markup.text(line.title)), *cells])
    head = ["", *(markup.text(row["engine"]) for row in rows)]
    return markup.table(head, body, label) + notes.shown()


def _verdicts(rows: Sequence[Data]) -> list[str]:
    chips = [markup.chip(row["verdict"], VERDICTS.get(row["verdict"], "none")) for row in rows]
    return [markup.row_head("verdict"), *(markup.cell(each) for each in chips)]


def _cell(row: Data, line: Line, value: Any, notes: Notes) -> str:
    if value is None:
        return markup.cell(words.UNDEFINED + notes.mark(_why(row, line)), "none")
    return markup.cell(markup.text(line.show(value)))


def _why(row: Data, line: Line) -> str:
    """The reason that a figure is not there."""
    if not is_shown(row):
        return f"{row['verdict']}: no figure is shown"
    if line.group.startswith("latency"):
        if row["interface"] != "stepping":
            return "only an engine that is stepped shows when a token comes"
        return (
            "no answer has two tokens"
            if "(tpot)" in line.title or "(itl)" in line.title
            else "not measured"
        )
    if line.group == "schedule":
        return _why_no_schedule(line)
    if line.group == "roofline":
        return (
            "none without a trace, for a model whose operations are not simply counted, or where "
            "requests arrive over time"
        )
    return "not measured"


def _why_no_schedule(line: Line) -> str:
    if line.title.startswith("most memory"):
        return "not to be measured on this system"
    if line.title.startswith("fed tokens"):
        return "no hook on the model saw what was fed"
    return "the engine shows no trace"


def unwell(rows: Sequence[Data]) -> Mapping[str, str]:
    """Engine -> what is said about it where it is not VALID."""
    return {
        row["engine"]: f"{row['verdict']}: {row.get('reason') or 'no reason is given'}"
        for row in rows
        if row.get("verdict", VALID) != VALID
    }
