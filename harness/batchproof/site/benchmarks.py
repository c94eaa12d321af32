"""A benchmark file as tables: a row for each engine. Only rows whose answers were all right have
figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import INVALID, UNVERIFIED, VALID, exceeds_slots
from batchproof.errors import UsageError
from batchproof.figures import LIGHT, SERIES, Chart, write_beside
from batchproof.records.texts import counted
from batchproof.site.inputs import BenchmarkFile, Data
from batchproof.site.tables import (
    NOTHING,
    Chip,
    Fact,
    Row,
    Table,
    TableCell,
    number,
    share,
)

INK, FAINT = LIGHT["ink"], LIGHT["faint"]
STEPS = (1, 1.5, 2, 3, 5, 7)  # labels of a logarithmic axis, in each decade
CAPTION = (
    "Right of the line at 1 an engine is faster than the one named in bold. Dots are geometric means "
    "of ratios taken lap by lap, bars their 95 % intervals; one that holds 1 shows no difference."
)


def ratio_chart(name: str, ratios: Mapping[str, Sequence[tuple[str, Ratio]]]) -> Chart | None:
    """Returns the chart of the ratios of engines below headings; None without any ratio. `name`, of
    the file, keeps the charts of a page apart."""
    lines = [line for heading, pairs in ratios.items() if pairs for line in ((heading, None), *pairs)]
    if not lines:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends = [0.95, 1.05]
        for place, (text, ratio) in enumerate(lines):
            if ratio is None:
                write_beside(axes, place, f"{text:.48}", INK, fontweight="bold")
            else:
                _draw_ratio(axes, place, text, ratio)
                ends += filter(None, (ratio.low, ratio.ratio, ratio.high))
        axes.axvline(1, color=FAINT, linewidth=1.2)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.set_xscale("log")
        axes.set_xlim(0.96 * min(ends), 1.04 * max(ends))
        axes.xaxis.set_major_locator(LogLocator(subs=STEPS if max(ends) < 12 * min(ends) else (1,)))
        axes.xaxis.set_major_formatter("{x:,.4g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("times the throughput (logarithmic)")

    return Chart(f"Paired throughput ratios, {name}", CAPTION, 540, 60 + 20 * len(lines), draw)


def _draw_ratio(axes: Axes, place: int, engine: str, ratio: Ratio) -> None:
    if ratio.low is not None and ratio.high is not None:
        axes.plot([ratio.low, ratio.high], [place, place], color=INK, linewidth=1.6)
    axes.plot(ratio.ratio, place, "o", color=SERIES[0], markeredgecolor=INK, markersize=7)
    write_beside(axes, place, f"{engine:.32}", INK)
    write_beside(axes, place, ratio.figures(), INK if ratio.is_different else FAINT, is_left=False)


CHIPS = {
    VALID: Chip(VALID, "good"),
    INVALID: Chip(INVALID, "bad"),
    UNVERIFIED: Chip(UNVERIFIED, "warn"),
}
FIGURES = ("TTFT ms", "ITL ms", "cores", "at once", "roofline")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload on one model. `reasons`: the engines that are not VALID, and why."""

    title: str
    why: str
    size: str
    table: Table
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All that is shown of a benchmark file. `about` says when and on what it was
    measured."""

    name: str
    about: str
    facts: tuple[Fact, ...]
    comparisons: tuple[Comparison, ...]
    ratios: Chart | None


def benchmark(file: BenchmarkFile) -> Benchmark:
    """Returns what is shown of a file. Raises `UsageError` if it lacks a figure that every row of a
    benchmark has.
    """
    try:
        return _benchmark(file)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"result file '{file.path}' is damaged, for it ends in {what}") from error


def _benchmark(file: BenchmarkFile) -> Benchmark:
    comparisons, device = file.data["comparisons"], file.data["header"]["device"]
    where = str(file.made.machine) if device["type"] == "cpu" else device["name"]
    ratios = {
        f"{each['workload']['name']}, {each['model']['name']}: over {_first(each)}": (
            _ratios_over_first(each)
        )
        for each in comparisons
    }
    return Benchmark(
        file.path.name,
        f"{where}, {file.made.date}",
        tuple(facts_of(file)),
        tuple(map(_comparison, comparisons)),
        ratio_chart(file.path.name, ratios),
    )


def _throughput(row: Data, comparison: Data) -> TableCell | None:
    """Returns the output tokens per second of the median, slowest and fastest round, by the clock of
    the comparison; None for a row that is not VALID."""
    if row["verdict"] != VALID or row["metrics"] is None or not row["rounds"]:
        return None
    seconds = [each[f"{comparison['clock']}_s"] for each in row["rounds"]]
    num_tokens = row["metrics"]["num_output_tokens"]
    if not num_tokens or min(seconds) <= 0:
        return None
    typical, low, high = (
        number(num_tokens / each) for each in (median(seconds), max(seconds), min(seconds))
    )
    return TableCell(typical, under=f"{low} to {high}")


def _ratios_over_first(comparison: Data) -> list[tuple[str, Ratio]]:
    first = _first(comparison)
    return [(each["engine"], Ratio.of(each)) for each in comparison["ratios"] if each["over"] == first]


def _first(comparison: Data) -> str:
    return comparison["rows"][0]["engine"] if comparison["rows"] else "none"


def _comparison(comparison: Data) -> Comparison:
    workload, model, rows = comparison["workload"], comparison["model"], comparison["rows"]
    title = f"{workload['name']} on {model['name']} in {model['dtype']}"
    rate = f"output tok/s ({comparison['clock']} time)"
    head = ("engine", "verdict", rate, *FIGURES, f"over {_first(comparison)}")
    return Comparison(
        title,
        str(workload["spec"].get("why", "")).strip(),
        _size(workload),
        Table(title, head, tuple(_row(row, comparison) for row in rows)),
        {
            row["engine"]: f"{row['verdict']}: {row.get('reason') or 'no reason is given'}"
            for row in rows
            if row["verdict"] != VALID
        },
    )


def _size(workload: Data) -> str:
    totals = workload["totals"]
    return (
        f"{counted(totals['num_requests'], 'request')} over "
        f"{counted(workload['spec']['slots'], 'slot')}, {totals['num_prompt_tokens']:,} prompt and at "
        f"most {totals['max_output_tokens']:,} output tokens."
    )


def _row(row: Data, comparison: Data) -> Row:
    verdict = TableCell(row["verdict"], chip=CHIPS[row["verdict"]])
    rate = _throughput(row, comparison)
    if rate is None:
        return Row(row["engine"], (verdict, *[NOTHING] * (len(FIGURES) + 2)))
    num_at_once = row.get("num_at_once")
    texts = (
        *(_latency(row["metrics"], name) for name in ("ttft", "itl")),
        number(row.get("cores")),
        "-" if num_at_once is None else f"{num_at_once:,}",
        share(((row.get("schedule") or {}).get("roofline") or {}).get("share")),
        _over_first(row, comparison),
    )
    return Row(row["engine"], (verdict, rate, *map(TableCell, texts)))


def _latency(metrics: Data, name: str) -> str:
    """Returns median and 99th percentile; a dash for an engine that does not show when tokens come."""
    values = metrics.get(f"median_{name}_ms"), metrics.get(f"p99_{name}_ms")
    return "-" if None in values else " / ".join(map(number, values))


def _over_first(row: Data, comparison: Data) -> str:
    if exceeds_slots(row, comparison["workload"]["spec"]["slots"]):
        return "more slots than asked"
    ratios = dict(_ratios_over_first(comparison))
    return ratios[row["engine"]].figures() if row["engine"] in ratios else "-"


def facts_of(file: BenchmarkFile) -> list[Fact]:
    """Returns what a file states about its origin."""
    made, header = file.made, file.data["header"]
    device = header["device"]
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    facts = [
        Fact("state", "complete" if file.record.is_complete else "INCOMPLETE: the run was stopped"),
        Fact("made", made.date),
        Fact("command", made.command, is_code=True),
        Fact("machine", str(made.machine)),
        Fact("versions", ", ".join(f"{name} {version}" for name, version in made.versions.items())),
        Fact("commit", made.commit),
        Fact("device", f"{device['type']}: {device['name']}{driver}"),
    ]
    if device.get("clocks"):
        clocks = ", ".join(f"{name} {value}" for name, value in device["clocks"].items())
        facts.append(Fact("clocks, when the run began", clocks))
    for name, value in (("threads", device.get("threads")), ("laps", header.get("num_laps"))):
        facts += [Fact(name, str(value))] if value else []
    return facts + [_ceiling(dtype, each) for dtype, each in header.get("ceilings", {}).items()]


def _ceiling(dtype: str, ceiling: Data) -> Fact:
    rates = [
        f"{number(ceiling['copy_bytes_per_s'] / 1e9)} GB/s copied",
        f"{number(ceiling['matmul_flop_per_s'] / 1e9)} GFLOP/s multiplied",
    ]
    return Fact(f"ceilings, {dtype}", ", ".join(rates))
