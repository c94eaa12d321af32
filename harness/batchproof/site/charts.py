"""The two charts of a benchmark file: paired ratios, and throughputs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from batchproof.bench.ratios import Ratio
from batchproof.figures import LIGHT, SERIES, Chart, write_beside
from batchproof.site.tables import number, shortened

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
