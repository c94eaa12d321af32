"""The table engine x promise, as `pytest --table=FILE` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class PromiseCell:
    """One engine and promise: the text of the cell, and the number of tests by outcome."""

    text: str
    passed: int = 0
    failed: int = 0
    near_ties: int = 0  # tokens, not tests
    known: int = 0  # failed, as expected
    no_cap: int = 0  # the engine lacks a capability
    refused: int = 0  # it does not serve the model
    inadequate: int = 0  # passed on a model that could not show a fault
    skipped: int = 0


@dataclass(frozen=True)
class Totals:
    num_runs: int = 0  # workloads given to an engine, judged or not
    num_workloads: int = 0
    num_requests: int = 0
    num_steps: int = 0
    num_logits: int = 0
    num_near_ties: int = 0
    seconds: float = 0.0  # of the tests, in all processes together
    engine_seconds: float = 0.0  # of those, the engine's
    counters: Mapping[str, int] = field(default_factory=dict)  # what happened, by trace and engine


@dataclass(frozen=True)
class ConformanceTable:
    """The whole table. Promises that no test checked have no cell."""

    made: Provenance
    engines: tuple[str, ...]
    cells: Mapping[str, Mapping[str, PromiseCell]]  # engine -> promise id
    totals: Mapping[str, Totals]  # engine
    models: tuple[str, ...] = ()
    device: str = ""
    dtype: str = ""
    precision: str = "as the model"
    torch: str = ""
    promises: Mapping[str, str] = field(default_factory=dict)  # id -> title
    notes: tuple[str, ...] = ()
    exit_status: int = 0  # of pytest
    is_complete: bool = True  # no test that was chosen is missing


CONFORMANCE = FileKind("conformance table", "batchproof.conformance", 1, ConformanceTable)
