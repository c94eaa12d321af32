"""Every engine of a benchmark file on every workload: one panel each, bars over one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batchproof.bench.reading import exceeds_slots
from batchproof.report.chart import INK, Chart, beside, colour, grid, series
from batchproof.report.rows import Data, throughput
from batchproof.report.words import clock_words, number, shortened

COLUMNS = 2
CAPTION = (
    "Longer is faster, each panel on a scale of its own. A bar is the median round, its whisker spans "
    "the slowest to the fastest. Hatched: more slots than asked, an answer to another question."
)


def field_chart(document: Data, colours: Mapping[str, int]) -> Chart | None:
    """Returns the picture, or None for a file without comparisons."""
    comparisons: Sequence[Data] = document["comparisons"]
    if not comparisons:
        return None
    num_columns = min(COLUMNS, len(comparisons))
    num_rows = -(-len(comparisons) // num_columns)
    most = max(len(each["rows"]) for each in comparisons)

    def draw(figure: Figure) -> None:
        panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for axes, each in zip(panels, comparisons, strict=False):
            _panel(axes, each, each["clock"], colours)
        for axes in panels[len(comparisons) :]:
            axes.set_axis_off()

    height = 30 + num_rows * (70 + 24 * most)
    return Chart("Engines side by side", CAPTION, 450 * num_columns, height, draw)


def _panel(axes: Axes, comparison: Data, clock: str, colours: Mapping[str, int]) -> None:
    slots = comparison["workload"]["spec"]["slots"]
    for place, row in enumerate(comparison["rows"]):
        beside(axes, place, shortened(row["engine"], 20), INK)
        found = throughput(row, clock)
        if found is None:
            axes.text(0, place, f"  {row['verdict']}", va="center", color=colour("bad"))
            continue
        spread = [[found.typical - found.low], [found.high - found.typical]]
        is_wide = exceeds_slots(row, slots)
        own = series(colours[row["engine"]])
        fill = colour("idle") if is_wide else own
        hatch = "///" if is_wide else None
        axes.barh(place, found.typical, 0.6, color=fill, edgecolor=own, hatch=hatch)
        axes.errorbar(found.typical, place, xerr=spread, color=INK, capsize=2.5, elinewidth=1)
        beside(axes, place, number(found.typical), INK, is_left=False)
    axes.set_ylim(len(comparison["rows"]) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_yticks([])
    grid(axes, "x")
    axes.set_title(f"{comparison['workload']['name']}, {comparison['model']['name']}")
    axes.set_xlabel(f"output tokens per second of {clock_words(clock)}")
