"""The sections of a benchmark file: each workload and model, then cost growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import clock_of
from batchproof.report import markup, words
from batchproof.report.album import Album
from batchproof.report.composition import compositions
from batchproof.report.growth import growth_pictures
from batchproof.report.inputs import Source
from batchproof.report.latencies import latency_pictures
from batchproof.report.metrics import metrics_table, unwell
from batchproof.report.ratios import ratio_dots
from batchproof.report.rows import Data, facing
from batchproof.report.slots import slot_timelines
from batchproof.report.throughput import throughput_bars

OPEN = "bimodal"  # the workload whose schedule is shown unasked: what continuous batching exists for


def benchmark_section(source: Source, anchor: str, colours: Mapping[str, int], album: Album) -> str:
    data = source.data
    comparisons = data["comparisons"]
    parts = [_about(source)]
    dots = ratio_dots(comparisons, colours)
    if dots is not None:
        parts.append(album.show(dots, "middle"))
    shown_open = next((each for each in comparisons if each["workload"]["name"] == OPEN), None)
    for each in comparisons:
        is_open = each is (shown_open or comparisons[0])
        parts.append(_comparison(source, each, colours, album, is_open))
    if growth := growth_pictures(data["growth"], colours):
        parts += [markup.element("h3", "Cost growth"), _not_valid(data["growth"])]
        parts += [album.show_all(growth.values()), _growth_words(data)]
    return markup.section(anchor, f"Benchmark {source.path.name}", *parts)


def _about(source: Source) -> str:
    header = source.data["header"]
    device = header["device"]
    clock = words.clock_words(header["clock"])
    told = f"On {device['name']}; ratios are made of {clock}, measured lap by lap."
    return markup.paragraph(markup.text(told), class_="faint")


def _comparison(
    source: Source, comparison: Data, colours: Mapping[str, int], album: Album, is_open: bool
) -> str:
    rows = comparison["rows"]
    name = comparison["workload"]["name"]
    clock = clock_of(source.data, comparison)
    title = f"{name}, model {comparison['model']['name']} in {comparison['model']['dtype']}"
    parts = [
        markup.element("h3", markup.text(title)),
        _workload(comparison),
        _ratios(comparison["ratios"]),
        _not_valid(rows),
        album.show(throughput_bars(comparison, clock, colours), "middle"),
        metrics_table(rows, f"Figures of {title}"),
    ]
    if schedules := _schedules(name, rows, album):
        parts.append(markup.folded("Slots and batches, step by step", schedules, is_open=is_open))
    if latencies := latency_pictures(rows, colours):
        grid = album.show_all(latencies)
        parts.append(markup.folded("Latency distributions", grid, is_open=is_open))
    return "".join(parts)


def _workload(comparison: Data) -> str:
    workload = comparison["workload"]
    totals, most = workload["totals"], workload.get("max_speedup_over_static") or {}
    told = (
        f"{words.many(totals['num_requests'], 'request')}, "
        f"{words.many(totals['num_prompt_tokens'], 'prompt token')}, "
        f"at most {words.many(totals['max_output_tokens'], 'output token')}"
    )
    if most.get("by_steps") and most.get("by_rows"):
        told += (
            f". No schedule beats static waves here by more than {most['by_steps']:.2f}x if each step "
            f"costs the same, {most['by_rows']:.2f}x if cost follows the tokens computed"
        )
    why = str(workload["spec"].get("why", "")).strip()
    about = markup.paragraph(markup.text(why)) if why else ""
    return about + markup.paragraph(markup.text(f"{told}."), class_="faint")


def _ratios(ratios: Sequence[Data]) -> str:
    items = []
    for each in ratios:
        said = Ratio.of(each).words(each["engine"], each["over"])
        laps = f"{words.many(each['num_laps'], 'lap')}, {words.clock_words(each['clock'])}"
        faint = markup.element("span", markup.text(f"({laps})"), class_="faint")
        items.append(f"{markup.element('strong', markup.text(said))} {faint}")
    return markup.bullets(items, "plain")


def _not_valid(rows: Sequence[Data]) -> str:
    return markup.bullets(
        f"{markup.element('strong', markup.text(engine))} is {markup.text(told)}"
        for engine, told in unwell(rows).items()
    )


def _schedules(name: str, rows: Sequence[Data], album: Album) -> str:
    sides = facing(rows)
    if not sides:
        return ""
    return album.show(slot_timelines(name, sides), "wide") + album.show_all(compositions(sides))


def _growth_words(data: Data) -> str:
    told = [
        f"{each['engine']}, {each['axis']}: {each['words']}"
        for each in data["growth"]
        if each.get("words")
    ]
    listed = markup.bullets(map(markup.text, told))
    return markup.folded("The same in words", listed) if listed else ""
