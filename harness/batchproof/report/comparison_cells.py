"""A comparison in words, and each of its engines as a line of figures."""

from __future__ import annotations

from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import exceeds_slots
from batchproof.report import words
from batchproof.report.metrics_table import latency, pair, roofline
from batchproof.report.rows import Data, throughput

THROUGHPUT = "output tok/s"
FIGURES = (THROUGHPUT, "TTFT ms", "ITL ms", "cores", "at once", "roofline")


def title_of(comparison: Data) -> str:
    model = comparison["model"]
    return f"{comparison['workload']['name']}, model {model['name']} in {model['dtype']}"


def why(workload: Data) -> str:
    """Returns what the workload is for; empty if its author did not say so."""
    return str(workload["spec"].get("why", "")).strip()


def workload_words(workload: Data) -> str:
    """Returns the size of a workload, and the most that scheduling can gain on it."""
    totals, most = workload["totals"], workload.get("max_speedup_over_static") or {}
    counts = (
        f"{words.many(totals['num_requests'], 'request')}, "
        f"{words.many(totals['num_prompt_tokens'], 'prompt token')}, "
        f"at most {words.many(totals['max_output_tokens'], 'output token')}."
    )
    if not (most.get("by_steps") and most.get("by_rows")):
        return counts
    return (
        f"{counts} No schedule beats static waves here by more than {most['by_steps']:.2f}x if each "
        f"step costs the same, {most['by_rows']:.2f}x if cost follows the tokens computed."
    )


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
