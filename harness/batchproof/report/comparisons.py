"""The section of a benchmark file: each workload and model, then cost growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchproof.bench.ratios import Ratio
from batchproof.drawing.picture import Picture
from batchproof.report import words
from batchproof.report.comparison_cells import title_of, why, workload_words
from batchproof.report.composition import compositions
from batchproof.report.growth_charts import growth_pictures
from batchproof.report.inputs import Source
from batchproof.report.latencies import latency_pictures
from batchproof.report.metrics_table import metrics_table, unwell
from batchproof.report.ratio_chart import ratio_dots
from batchproof.report.rows import Data, facing
from batchproof.report.table_values import Table
from batchproof.report.throughput import throughput_bars
from batchproof.report.timelines import slot_timelines

OPEN = "bimodal"  # the workload whose details are open at first: continuous batching gains most there


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload on one model, all engines side by side."""

    title: str
    why: str
    workload: str
    ratios: tuple[tuple[str, str], ...]  # the ratio in words, and what it is made of
    unwell: Mapping[str, str]  # verdict and reason of each engine that is not VALID
    throughput: Picture
    figures: Table
    slots: Picture | None
    compositions: tuple[Picture, ...]
    latencies: tuple[Picture, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """Cost growth: engines without a valid result, pictures, and the fits in words."""

    unwell: Mapping[str, str]
    pictures: tuple[Picture, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The section of a benchmark file."""

    about: str
    ratios: Picture | None
    comparisons: tuple[Comparison, ...]
    growth: Growth | None


def benchmark(source: Source, colours: Mapping[str, int]) -> Benchmark:
    """Returns all values of a section. `colours` holds an index for each engine."""
    header, comparisons = source.data["header"], source.data["comparisons"]
    clock = words.clock_words(header["clock"])
    shown = chosen(comparisons)
    return Benchmark(
        f"On {header['device']['name']}; ratios are made of {clock}, measured lap by lap.",
        ratio_dots(comparisons, colours),
        tuple(_comparison(each, colours, each is shown) for each in comparisons),
        _growth(source.data["growth"], colours),
    )


def chosen(comparisons: Sequence[Data]) -> Data | None:
    """Returns the comparison to show first: the one on the workload `OPEN`, else the first one."""
    named = (each for each in comparisons if each["workload"]["name"] == OPEN)
    return next(named, comparisons[0] if comparisons else None)


def _comparison(comparison: Data, colours: Mapping[str, int], is_open: bool) -> Comparison:
    rows, name = comparison["rows"], comparison["workload"]["name"]
    title = title_of(comparison)
    sides = facing(rows)
    return Comparison(
        title,
        why(comparison["workload"]),
        workload_words(comparison["workload"]),
        tuple(map(_ratio, comparison["ratios"])),
        unwell(rows),
        throughput_bars(comparison, comparison["clock"], colours),
        metrics_table(rows, f"Figures of {title}"),
        slot_timelines(name, sides) if sides else None,
        compositions(sides),
        latency_pictures(rows, colours),
        is_open,
    )


def _ratio(each: Data) -> tuple[str, str]:
    laps = f"{words.many(each['num_laps'], 'lap')}, {words.clock_words(each['clock'])}"
    return Ratio.of(each).words(each["engine"], each["over"]), laps


def _growth(sweeps: Sequence[Data], colours: Mapping[str, int]) -> Growth | None:
    pictures = growth_pictures(sweeps, colours)
    lines = (
        f"{each['engine']}, {each['axis']}: {each['words']}" for each in sweeps if each.get("words")
    )
    return Growth(unwell(sweeps), tuple(pictures.values()), tuple(lines)) if pictures else None
