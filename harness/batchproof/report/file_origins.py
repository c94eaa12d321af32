"""Where each file comes from: its machine, versions and command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchproof.report import words
from batchproof.report.inputs import Kind, Source
from batchproof.report.table_values import Chip


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its value, as one line of the section."""

    name: str
    text: str
    is_code: bool = False
    chip: Chip | None = None


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """One file and what it says about itself."""

    path: str
    facts: tuple[Fact, ...]


INCOMPLETE = Chip("INCOMPLETE", "warn")


def origin(source: Source) -> FileOrigin:
    """Returns what a file states about its origin."""
    return FileOrigin(str(source.path), tuple(_facts(source)))


def _facts(source: Source) -> Iterator[Fact]:
    made = source.made
    machine = made.get("machine", {})
    yield Fact("what", source.kind.value)
    yield Fact("state", "complete") if source.is_complete else Fact("state", "", chip=INCOMPLETE)
    yield Fact("made", made.get("date", "?"))
    yield Fact("command", made.get("command", "?"), is_code=True)
    yield Fact("machine", words.machine_words(machine))
    versions = made.get("versions", {})
    yield Fact("versions", ", ".join(f"{name} {number}" for name, number in versions.items()))
    yield Fact("commit", made.get("commit", "?"))
    if source.kind is Kind.BENCHMARK:
        yield from _benchmark_facts(source)
    for update in source.data.get("updates", []):
        rows = words.many(len(update["faults"]), "row")
        yield Fact("updated", f"{rows} on {update['made']['date']}")


def _benchmark_facts(source: Source) -> Iterator[Fact]:
    header = source.data["header"]
    device = header["device"]
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    memory = f", {words.size(device['memory_bytes'])}" if device.get("memory_bytes") else ""
    yield Fact("device", f"{device['type']}: {device['name']}{driver}{memory}")
    if device.get("clocks"):
        clocks = ", ".join(f"{name} {value}" for name, value in device["clocks"].items())
        yield Fact("clocks, when the run began", clocks)
    if device.get("threads"):
        yield Fact("threads", str(device["threads"]))
    if header.get("num_laps"):
        yield Fact("laps", str(header["num_laps"]))
    yield Fact("clock of ratios", words.clock_words(header["clock"]))
    for dtype, ceiling in header.get("ceilings", {}).items():
        rates = [f"{words.number(ceiling['copy_bytes_per_s'] / 1e9)} GB/s copied"]
        if "read_bytes_per_s" in ceiling:  # not in older files
            rates.append(f"{words.number(ceiling['read_bytes_per_s'] / 1e9)} GB/s read")
        rates.append(f"{words.number(ceiling['matmul_flop_per_s'] / 1e9)} GFLOP/s multiplied")
        yield Fact(f"ceilings, {dtype}", ", ".join(rates))
