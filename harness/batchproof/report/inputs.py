"""Which files the report is made of, and what each of them is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from batchproof.bench import reading
from batchproof.errors import UsageError
from batchproof.report.schema import CONFORMANCE

RESULTS = Path("results")
KNOWN = (
    "benchmarks (pytest --benchmark-only), conformance tables (pytest --table=FILE), "
    "faults.json and honest.json"
)
Data = Mapping[str, Any]


class Kind(Enum):
    BENCHMARK = "benchmark"
    CONFORMANCE = "conformance table"
    FAULTS = "planted faults"
    HONEST = "honest engines"


# What must be there of the kinds that no other module reads; campaigns name no schema.
SHAPES: dict[Kind, dict[str, type]] = {
    Kind.CONFORMANCE: {"made": dict, "engines": list, "cells": dict, "totals": dict},
    Kind.FAULTS: {"made": dict, "faults": dict, "diagnosis": dict, "models": list, "seeds": list},
    Kind.HONEST: {"made": dict, "totals": dict, "alarms": list, "engines": dict},
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file, read."""

    path: Path
    kind: Kind
    data: Data

    @property
    def made(self) -> Data:
        """Its provenance."""
        made: Data = (self.data.get("header") or self.data)["made"]
        return made

    @property
    def is_complete(self) -> bool:
        """False if the run that wrote it was stopped."""
        if self.kind is Kind.BENCHMARK:
            return reading.is_complete(self.data)
        return bool(self.data.get("is_complete"))


def sources(paths: Sequence[Path]) -> list[Source]:
    """In the order of the page. Raises `UsageError` for a file that cannot be used; of those that
    nobody named, only what has a known schema is taken."""
    found = [_read(path) for path in dict.fromkeys(paths)] if paths else _default_sources()
    kinds = list(Kind)
    return sorted(found, key=lambda source: kinds.index(source.kind))


def _default_sources() -> list[Source]:
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        data = reading.parsed(path)
        if _kind(data) is None:
            print(f"left out: {path} is of another schema", file=sys.stderr)
        else:
            found.append(_source(path, data))
    if not found:
        raise UsageError(f"there is no result file in '{RESULTS}': name some, of {KNOWN}")
    return found


def _read(path: Path) -> Source:
    return _source(path, reading.parsed(path))


def _source(path: Path, data: Any) -> Source:
    kind = _kind(data)
    if kind is None:
        raise UsageError(f"'{path}' is no result file that a report is made of: {KNOWN}")
    if kind is Kind.BENCHMARK:
        return Source(path, kind, reading.checked(path, data))
    for key, shape in SHAPES[kind].items():
        if not isinstance(data.get(key), shape):
            raise UsageError(f"result file '{path}' is damaged: its {key!r} is no {shape.__name__}")
    return Source(path, kind, data)


def _kind(data: Any) -> Kind | None:
    if not isinstance(data, dict):
        return None
    schema = data.get("schema")
    if isinstance(schema, str) and schema.startswith(f"{reading.FAMILY}/"):
        return Kind.BENCHMARK  # one that is too new is told by its reader
    if schema == CONFORMANCE:
        return Kind.CONFORMANCE
    if data.get("schema_version") == 1:
        return Kind.FAULTS if "faults" in data else Kind.HONEST if "alarms" in data else None
    return None
