"""Conformance tables, engine x promise, and the campaigns that show what the suite is worth."""

from __future__ import annotations

from batchproof.promises import Promise
from batchproof.report import markup, words
from batchproof.report.inputs import Source
from batchproof.report.rows import Data

LEGEND = (
    "n: tests passed; ~n: with n near-ties; FAIL n: tests failed; known n: known failures, as listed; "
    "no cap: the engine lacks a capability; refused: it does not serve the model; -: not run."
)


def conformance_section(source: Source, anchor: str) -> str:
    data = source.data
    engines, cells = data["engines"], data["cells"]
    rows = [
        [
            markup.row_head(markup.text(f"{promise.id} {promise.title}")),
            *(_cell(cells.get(engine, {}).get(promise.id)) for engine in engines),
        ]
        for promise in Promise
        if any(promise.id in cells.get(engine, {}) for engine in engines)
    ]
    table = markup.table(
        ["promise", *map(markup.text, engines)], rows, "Conformance: engine by promise"
    )
    models = ", ".join(data.get("models", []))
    about = f"On {models}; {data.get('device', '?')}, {data.get('dtype', '?')}."
    return markup.section(
        anchor,
        f"Conformance {source.path.name}",
        markup.paragraph(markup.text(about), class_="faint"),
        table,
        markup.paragraph(markup.text(LEGEND), class_="notes"),
        markup.bullets(markup.text(_total(e, data["totals"].get(e, {}))) for e in engines),
    )


def _cell(cell: Data | None) -> str:
    if cell is None:
        return markup.cell(words.UNDEFINED, "none")
    is_known = cell.get("known") and not cell.get("failed")
    kind = "bad" if cell.get("failed") else "warn" if is_known else "" if cell.get("passed") else "none"
    said = {
        key.replace("_", " "): value for key, value in cell.items() if isinstance(value, int) and value
    }
    title = ", ".join(f"{key} {value}" for key, value in said.items())
    return markup.cell(markup.text(cell["text"]), kind, title)


def _total(engine: str, totals: Data) -> str:
    kinds = {
        "workloads": "num_workloads",
        "answers": "num_requests",
        "tokens": "num_steps",
        "near-ties": "num_near_ties",
    }
    told = ", ".join(f"{totals.get(key, 0):,} {kind}" for kind, key in kinds.items())
    return f"{engine}: {told}"


def num_failed(source: Source) -> int:
    return sum(cell.get("failed", 0) for row in source.data["cells"].values() for cell in row.values())
