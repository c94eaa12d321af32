"""Pictures as separate files on white, for a README."""

from __future__ import annotations

from collections.abc import Sequence

from batchproof.drawing.picture import Picture, standalone
from batchproof.report.comparisons import chosen
from batchproof.report.growth_charts import growth_pictures
from batchproof.report.inputs import Kind, Source
from batchproof.report.page import engine_colours
from batchproof.report.ratio_chart import ratio_dots
from batchproof.report.rows import facing
from batchproof.report.throughput import throughput_bars
from batchproof.report.timelines import slot_timelines
from batchproof.report.words import machine_words


def pictures(read: Sequence[Source]) -> dict[str, str]:
    """Returns SVG of the first benchmark file, by file name without ending. The workload shown is the
    bimodal one if there is one, else the first.
    """
    source = next((each for each in read if each.kind is Kind.BENCHMARK), None)
    if source is None:
        return {}
    colours = engine_colours(read)
    found: dict[str, Picture | None] = {"ratios": ratio_dots(source.data["comparisons"], colours)}
    shown = chosen(source.data["comparisons"])
    if shown is not None:
        found["throughput"] = throughput_bars(shown, shown["clock"], colours)
        sides = facing(shown["rows"])
        if sides:
            found["slots"] = slot_timelines(shown["workload"]["name"], sides)
    for name, growth in growth_pictures(source.data["growth"], colours).items():
        found[f"growth-{name}"] = growth
    note = note_of(source)
    return {name: standalone(each, note) for name, each in found.items() if each is not None}


def note_of(source: Source) -> str:
    """Returns the hardware on which the figures were measured."""
    header = source.data["header"]
    machine = header["made"]["machine"]
    is_cpu = header["device"]["type"] == "cpu"
    device = machine_words(machine) if is_cpu else header["device"]["name"]
    return f"{device}, {header['made'].get('date', '?')}, {source.path.name}"
