"""A benchmark file as tables: a row for each engine. Only rows whose answers were all right have
figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import INVALID, UNVERIFIED, VALID, exceeds_slots
from batchproof.errors import UsageError
from batchproof.figures import LIGHT, SERIES, Chart, write_beside
from batchproof.records.benchmark import BenchmarkRecord
from batchproof.records.file_kinds import replace_text
from batchproof.records.texts import header, line
from batchproof.site.inputs import BenchmarkFile, Data, read_input
from batchproof.site.tables import (
    NOTHING,
    Chip,
    Fact,
    Row,
    Table,
    TableCell,
    many,
    number,
    share,
    shortened,
)

INK, FAINT = LIGHT["ink"], LIGHT["faint"]
MARKERS = "os^DvP"  # engines differ in more than their colours
COLUMNS = 2
RATIOS = (
    "Right of the line at 1 an engine is faster than the one named in bold. Dots are geometric means "
    "of ratios taken lap by lap, bars their 95 % intervals; one that holds 1 shows no difference."
)
THROUGHPUTS = (
    "Longer is faster, each panel on a scale of its own. A bar is the median round, its whisker spans "
    "the slowest to the fastest. Hatched: more slots than asked, an answer to another question."
)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens per second: median, slowest and fastest round."""

    typical: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One engine of a panel. Only a row that is VALID has a throughput."""

    engine: str
    verdict: str
    throughput: Throughput | None
    exceeds_slots: bool


Ratios = Mapping[str, Sequence[tuple[str, Ratio]]]  # heading -> engines with their ratios
Panels = Mapping[str, Sequence[Bar]]  # by title


def ratio_chart(ratios: Ratios, colours: Mapping[str, int]) -> Chart | None:
    """Returns the chart, None without any ratio. `colours` holds an index for each engine."""
    if not ratios:
        return None
    lines = [line for heading, pairs in ratios.items() for line in ((heading, None), *pairs)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends = [0.95, 1.05]
        for place, (text, ratio) in enumerate(lines):
            if ratio is None:
                write_beside(axes, place, text, INK, fontweight="bold")
            else:
                _draw_ratio(axes, place, text, ratio, colours[text])
                ends += filter(None, (ratio.low, ratio.ratio, ratio.high))
        axes.axvline(1, color=FAINT, linewidth=1.2)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.set_xscale("log")
        axes.set_xlim(0.96 * min(ends), 1.04 * max(ends))
        _label_log(axes.xaxis, *axes.get_xlim())
        axes.set_xlabel("times the throughput (logarithmic)")

    return Chart("Paired throughput ratios", RATIOS, 540, 60 + 20 * len(lines), draw)


def _draw_ratio(axes: Axes, place: int, engine: str, ratio: Ratio, index: int) -> None:
    if ratio.low is not None and ratio.high is not None:
        axes.plot([ratio.low, ratio.high], [place, place], color=INK, linewidth=1.6)
    look = {"color": SERIES[index % len(SERIES)], "markeredgecolor": INK, "markersize": 7}
    axes.plot(ratio.ratio, place, MARKERS[index % len(MARKERS)], **look)  # type: ignore[arg-type]
    write_beside(axes, place, shortened(engine, 32), INK)
    write_beside(axes, place, ratio.figures(), INK if ratio.is_different else FAINT, is_left=False)


def _label_log(axis: Axis, low: float, high: float) -> None:
    """Labels a logarithmic axis with round numbers, the denser the narrower the range."""
    steps = (1, 1.5, 2, 3, 5, 7) if high < 12 * low else (1, 2, 5) if high < 400 * low else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(ticks, [f"{tick:,.4g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def throughput_chart(panels: Panels, colours: Mapping[str, int]) -> Chart | None:
    """Returns a panel for each comparison, None without any."""
    if not panels:
        return None
    num_columns = min(COLUMNS, len(panels))
    num_rows = ceil(len(panels) / num_columns)
    most = max(map(len, panels.values()))

    def draw(figure: Figure) -> None:
        all_axes: list[Axes] = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for axes, (title, bars) in zip(all_axes, panels.items(), strict=False):
            axes.set_title(title)
            _draw_panel(axes, bars, colours)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()

    height = 40 + num_rows * (66 + 21 * most)
    return Chart("Throughput", THROUGHPUTS, 430 * num_columns, height, draw)


def _draw_panel(axes: Axes, bars: Sequence[Bar], colours: Mapping[str, int]) -> None:
    for place, bar in enumerate(bars):
        write_beside(axes, place, shortened(bar.engine), INK)
        rate, colour = bar.throughput, SERIES[colours[bar.engine] % len(SERIES)]
        if rate is None:
            axes.text(0, place, f"  {bar.verdict}", va="center", color=LIGHT["bad"])
            continue
        fill, hatch = (LIGHT["idle"], "///") if bar.exceeds_slots else (colour, None)
        axes.barh(place, rate.typical, 0.6, color=fill, edgecolor=colour, hatch=hatch)
        spread = [[rate.typical - rate.low], [rate.high - rate.typical]]
        axes.errorbar(rate.typical, place, xerr=spread, color=INK, capsize=2.5, elinewidth=1)
        write_beside(axes, place, number(rate.typical), INK, is_left=False)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_yticks([])
    axes.grid(axis="x")
    axes.set_xlabel("output tokens per second")


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
    throughputs: Chart | None


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
    rows = [row for each in comparisons for row in each["rows"]]
    colours = {name: index for index, name in enumerate(dict.fromkeys(row["engine"] for row in rows))}
    panels = {_heading(each): [_bar(row, each) for row in each["rows"]] for each in comparisons}
    ratios = {
        f"{_heading(each)}: over {_first(each)}": _ratios_over_first(each) for each in comparisons
    }
    return Benchmark(
        file.path.name,
        f"{where}, {file.made.date}",
        tuple(facts_of(file)),
        tuple(map(_comparison, comparisons)),
        ratio_chart({title: lines for title, lines in ratios.items() if lines}, colours),
        throughput_chart(panels, colours),
    )


def _heading(comparison: Data) -> str:
    return f"{comparison['workload']['name']}, {comparison['model']['name']}"


def _bar(row: Data, comparison: Data) -> Bar:
    is_wide = exceeds_slots(row, comparison["workload"]["spec"]["slots"])
    return Bar(row["engine"], row["verdict"], throughput(row, comparison), is_wide)


def throughput(row: Data, comparison: Data) -> Throughput | None:
    """Returns the throughput by the clock of the comparison; None for a row that is not VALID."""
    if row["verdict"] != VALID or row["metrics"] is None or not row["rounds"]:
        return None
    seconds = [each[f"{comparison['clock']}_s"] for each in row["rounds"]]
    num_tokens = row["metrics"]["num_output_tokens"]
    if not num_tokens or min(seconds) <= 0:
        return None
    return Throughput(*(num_tokens / each for each in (median(seconds), max(seconds), min(seconds))))


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
    """Returns the size of a workload, and the most that scheduling can gain on it."""
    totals, most = workload["totals"], workload.get("max_speedup_over_static") or {}
    size = (
        f"{many(totals['num_requests'], 'request')} over {many(workload['spec']['slots'], 'slot')}, "
        f"{totals['num_prompt_tokens']:,} prompt and at most {totals['max_output_tokens']:,} output "
        f"tokens."
    )
    if not (most.get("by_steps") and most.get("by_rows")):
        return size
    return (
        f"{size} No schedule beats static waves here by more than {most['by_steps']:.2f}x if each step "
        f"costs the same, {most['by_rows']:.2f}x if cost follows the tokens computed."
    )


def _row(row: Data, comparison: Data) -> Row:
    verdict = TableCell(row["verdict"], chip=CHIPS[row["verdict"]])
    rate = throughput(row, comparison)
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
    spread = TableCell(number(rate.typical), under=f"{number(rate.low)} to {number(rate.high)}")
    return Row(row["engine"], (verdict, spread, *map(TableCell, texts)))


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


def write_markdown(path: Path) -> list[Path]:
    """Writes the page and its pictures beside a benchmark file. Raises `UsageError` for another file.

    Returns the paths that were written.
    """
    file = read_input(path)
    if file is None or not isinstance(file.record, BenchmarkRecord):
        raise UsageError(f"--markdown '{path}' is no benchmark file")
    shown = benchmark(file)
    charts = {"": shown.throughputs, "-ratios": shown.ratios}
    pictures = {path.with_name(f"{path.stem}{end}.svg"): each for end, each in charts.items() if each}
    lines = [*_head(shown)]
    for picture, chart in pictures.items():
        replace_text(picture, chart.standalone(f"{shown.about}, {shown.name}"))
        lines += ["", f"![{chart.title}]({picture.name})", "", chart.caption]
    lines += [each for comparison in shown.comparisons for each in _comparison_lines(comparison)]
    page = path.with_suffix(".md")
    replace_text(page, "\n".join(lines) + "\n")
    return [page, *pictures]


def _head(shown: Benchmark) -> Iterator[str]:
    yield f"# Benchmark: {shown.name}"
    yield ""
    yield from (
        f"* {each.name}: `{each.text}`" if each.is_code else f"* {each.name}: {each.text}"
        for each in shown.facts
    )
    yield ""
    yield "Every token of every timed round was checked; TTFT and ITL are median / 99th percentile."


def _comparison_lines(each: Comparison) -> Iterator[str]:
    yield f"\n## {each.title}\n"
    yield f"{each.size}\n"
    yield from header(*each.table.head)
    yield from (line(row.head, *(cell.text for cell in row.cells)) for row in each.table.rows)
    if each.reasons:
        yield ""
        yield from (f"* {engine}: {reason}" for engine, reason in each.reasons.items())
