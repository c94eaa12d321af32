"""Where each file comes from: without it no figure means anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchproof.report import markup, words
from batchproof.report.inputs import Kind, Source


def environment_section(read: Sequence[Source], anchor: str) -> str:
    parts = []
    for source in read:
        listed = "".join(
            markup.element("dt", markup.text(name)) + markup.element("dd", told)
            for name, told in _facts(source)
        )
        parts += [markup.element("h3", markup.text(source.path)), markup.element("dl", listed)]
    return markup.section(anchor, "Where the figures come from", *parts)


def _facts(source: Source) -> Iterator[tuple[str, str]]:
    """Names, and what is said as HTML."""
    made = source.made
    machine = made.get("machine", {})
    yield "what", markup.text(source.kind.value)
    yield "state", "complete" if source.is_complete else markup.chip("INCOMPLETE", "warn")
    yield "made", markup.text(made.get("date", "?"))
    yield "command", markup.element("code", markup.text(made.get("command", "?")))
    cores = words.many(machine["cores"], "core") if "cores" in machine else "? cores"
    yield "machine", markup.text(f"{cores} of {machine.get('cpu', '?')}")
    versions = ", ".join(f"{name} {number}" for name, number in made.get("versions", {}).items())
    yield "versions", markup.text(versions)
    yield "commit", markup.text(made.get("commit", "?"))
    if source.kind is Kind.BENCHMARK:
        yield from _benchmark_facts(source)
    for update in source.data.get("updates", []):
        faults = words.many(len(update["faults"]), "row")
        yield "made anew", markup.text(f"{faults} on {update['made']['date']}")


def _benchmark_facts(source: Source) -> Iterator[tuple[str, str]]:
    header = source.data["header"]
    device = header["device"]
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    memory = f", {words.size(device['memory_bytes'])}" if device.get("memory_bytes") else ""
    yield "device", markup.text(f"{device['type']}: {device['name']}{driver}{memory}")
    if device.get("clocks"):
        told = ", ".join(f"{name} {value}" for name, value in device["clocks"].items())
        yield "clocks, when the run began", markup.text(told)
    if device.get("threads"):
        yield "threads", markup.text(device["threads"])
    if header.get("num_laps"):
        yield "laps", markup.text(header["num_laps"])
    if header.get("slo_ms"):
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in header["slo_ms"].items())
        yield "limits of goodput", markup.text(limits)
    yield "clock of ratios", markup.text(words.clock_words(header["clock"]))
    for dtype, ceiling in header.get("ceilings", {}).items():
        told = (
            f"{words.number(ceiling['copy_bytes_per_s'] / 1e9)} GB/s copied, "
            f"{words.number(ceiling['matmul_flop_per_s'] / 1e9)} GFLOP/s multiplied"
        )
        yield f"ceilings, {dtype}", markup.text(told)
