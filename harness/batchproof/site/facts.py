"""Where a verdict or a benchmark comes from, as labels and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchproof.records.provenance import Provenance
from batchproof.records.verdict import EngineVerdict
from batchproof.site.inputs import BenchmarkFile, Data


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its value."""

    name: str
    text: str
    is_code: bool = False


def verdict_facts(verdict: EngineVerdict) -> Iterator[Fact]:
    """Yields what was judged, when, on what, and how to do it again."""
    made = verdict.made
    yield Fact("release", verdict.release or "not stated")
    yield Fact("judged", made.date)
    yield Fact("precision", verdict.precision or "that of the model")
    yield from _machine(made)
    if asked := verdict.requirement_set:
        yield Fact("requirements", f"{asked.name}, digest {asked.digest}")
    yield Fact("suite", f"{verdict.suite.version}, digest {verdict.suite.digest}")
    yield Fact("commit of the suite", made.commit)
    yield Fact("to judge it again", made.command, is_code=True)
    if verdict.suite_command != made.command:
        yield Fact("the suite alone", verdict.suite_command, is_code=True)
    yield from (Fact("work of", each) for each in made.sittings)


def benchmark_facts(file: BenchmarkFile) -> Iterator[Fact]:
    """Yields when, how and on what a benchmark was measured."""
    made, header = file.made, file.data["header"]
    device = header["device"]
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    yield Fact("state", "complete" if file.record.is_complete else "INCOMPLETE: the run was stopped")
    yield Fact("made", made.date)
    yield Fact("command", made.command, is_code=True)
    yield from _machine(made)
    yield Fact("commit", made.commit)
    yield Fact("device", f"{device['type']}: {device['name']}{driver}")
    if clocks := device.get("clocks"):
        words = ", ".join(f"{name} {value}" for name, value in clocks.items())
        yield Fact("clocks, when the run began", words)
    for name, value in (("threads", device.get("threads")), ("laps", header.get("num_laps"))):
        if value:
            yield Fact(name, str(value))
    for dtype, each in header.get("ceilings", {}).items():
        yield Fact(f"ceilings, {dtype}", _ceilings(each))


def _machine(made: Provenance) -> Iterator[Fact]:
    yield Fact("machine", str(made.machine))
    yield Fact("versions", ", ".join(f"{name} {number}" for name, number in made.versions.items()))


def _ceilings(rates: Data) -> str:
    copied, multiplied = rates["copy_bytes_per_s"] / 1e9, rates["matmul_flop_per_s"] / 1e9
    return f"{copied:,.1f} GB/s copied, {multiplied:,.0f} GFLOP/s multiplied"
