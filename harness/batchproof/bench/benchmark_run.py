"""A benchmark run: comparisons, written to one file as they are measured."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from batchproof.bench.hardware import device_facts, measure_ceilings
from batchproof.bench.interleaved import compare_engines
from batchproof.bench.result_rows import Terms
from batchproof.bench.spec import BenchWorkload
from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.records.decode import encode
from batchproof.records.file_kinds import json_lines, replace_text
from batchproof.records.provenance import made_now, pytest_line
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.trial import Trial

SCHEMA = "batchproof.benchmark/3"
FOLDER = ROOT / "results" / "benchmarks"


class BenchmarkRun:
    """Measures the ceilings and begins `file`, the result file, when it is made."""

    def __init__(self, lab: Laboratory, terms: Terms, path: Path) -> None:
        self._lab = lab
        ceilings = measure_ceilings(lab.device, lab.dtype)
        self._terms = replace(terms, ceilings=ceilings)
        dtype = str(lab.dtype).removeprefix("torch.")
        header = {
            "made": encode(made_now(pytest_line(sys.argv[1:]))),
            "device": device_facts(lab.device),
            "clock": terms.clock,
            "num_laps": terms.num_laps,
            "ceilings": {dtype: asdict(ceilings)},
        }
        self.file = ResultFile(path, header)

    def compare(
        self,
        workload: BenchWorkload,
        model_name: str,
        engines: Sequence[EngineSpec],
        on_round: Callable[[str], None],
    ) -> dict[str, Any]:
        """Times all engines interleaved on one workload; writes and returns the comparison."""
        began = perf_counter()
        subject = self._lab.subject(model_name)
        load_s = perf_counter() - began
        oracle = self._lab.oracle(model_name)
        trials = [Trial(self._lab, each, oracle, Promise.P1) for each in engines]
        found = compare_engines(trials, workload, self._terms, on_round)
        model = {
            "name": subject.name,
            "dtype": subject.dtype_name,
            "num_parameters": subject.model.num_parameters(),
            "load_s": load_s,
        }
        comparison = {"workload": found.pop("workload"), "model": model} | found
        self.file.add(comparison)
        return comparison


class ResultFile:
    """A result file that grows: raw rounds and the figures made of them, as one JSON object.

    The file is rewritten as a whole after each addition, through a temporary file that replaces it, so
    it is valid JSON at any moment. Only `finish` adds the footer: without it the run was stopped.
    """

    def __init__(self, path: Path, header: Mapping[str, object]) -> None:
        """Writes the file without entries. Raises `UsageError` if it cannot be written."""
        self.path = path
        self._result: dict[str, Any] = {"schema": SCHEMA, "header": dict(header), "comparisons": []}
        self._save()

    def add(self, comparison: Mapping[str, object]) -> None:
        """Appends a comparison and writes the file. Raises `ValueError` for NaN or infinity."""
        # A copy: later changes do not count.
        content = json.loads(json.dumps(comparison, allow_nan=False))
        self._result["comparisons"].append(content)
        self._save()

    def finish(self) -> None:
        self._result["footer"] = {
            "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "num_comparisons": len(self._result["comparisons"]),
        }
        self._save()

    def _save(self) -> None:
        replace_text(self.path, json_lines(self._result))


def result_path(asked: str | None, device_type: str) -> Path:
    """Returns where the result file goes. Raises `UsageError` if nothing can be written there."""
    if asked is None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        FOLDER.mkdir(parents=True, exist_ok=True)
        return FOLDER / f"{stamp}-{device_type}.json"
    path = Path(asked)
    if path.is_dir() or path.suffix != ".json":
        raise UsageError(f"--results {asked!r} must name a file that ends in .json")
    if not path.parent.is_dir():
        raise UsageError(f"--results {asked!r}: there is no folder {str(path.parent)!r}")
    return path
