"""One engine of a comparison as a line of figures, for tables with a line for each engine."""

from __future__ import annotations

from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import exceeds_slots
from batchproof.report import words
from batchproof.report.metrics_table import latency, pair, roofline
from batchproof.report.rows import Data, throughput

THROUGHPUT = "output tok/s"
FIGURES = (THROUGHPUT, "TTFT ms", "ITL ms", "cores", "at once", "roofline")


def row_cells(row: Data, comparison: Data, clock: str) -> list[str]:
    """Returns the figures of a row that may be shown, and its ratio over the first engine."""
    found = throughput(row, clock)
    return [
        words.number(found.typical if found else None),
        *(pair(latency(name)(row)) for name in ("ttft", "itl")),
        words.number(row.get("cores")),
        words.count(row.get("num_at_once")),
        words.share(roofline("share")(row)),
        _over_first(row, comparison),
    ]


def _over_first(row: Data, comparison: Data) -> str:
    first = comparison["rows"][0]["engine"]
    if exceeds_slots(row, comparison["workload"]["spec"]["slots"]):
        return "more slots than asked"
    pairs = ((each["engine"], each["over"]) for each in comparison["ratios"])
    found = dict(zip(pairs, comparison["ratios"], strict=True)).get((row["engine"], first))
    return Ratio.of(found).figures() if found else words.UNDEFINED
