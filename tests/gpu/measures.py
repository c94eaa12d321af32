"""Measurements as JSON lines, each written to disk as soon as it is known.

A section, made by one process, begins with a line that says where its figures come from. Made again, it
takes the place of the old one; those of other processes stay.
"""

import json
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from batchproof.bench.hardware import Ceilings, device_facts, measure_ceilings
from batchproof.records.file_kinds import replace_text
from batchproof.records.provenance import command_line, provenance

SCHEMA = "batchproof.gpu/1"


class Measures:
    """Writes and prints figures; `has_failed` says whether a piece of the section has raised."""

    def __init__(self, path: Path, section: str, device: torch.device, for_s: float) -> None:
        self._path = path
        self._section = section
        self._began = monotonic()
        self._for_s = for_s
        self.has_failed = False
        old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        own = json.dumps({"section": section})[:-1]
        # A line that a kill has cut short would spoil the next.
        kept = [line for line in old.splitlines() if line.endswith("}") and not line.startswith(own)]
        replace_text(path, "".join(f"{line}\n" for line in kept))
        made = provenance(command_line("python", "-m", "tests.gpu"))
        self._write(schema=SCHEMA, made=made, device=device_facts(device))

    @property
    def left_s(self) -> float:
        return self._for_s - (monotonic() - self._began)

    def add(self, name: str, summary: str, **figures: Any) -> None:
        """Writes and prints figures, whose names end in their unit."""
        print(f"{name}: {summary}", flush=True)
        self._write(name=name, at_s=round(monotonic() - self._began, 1), summary=summary, **figures)

    def ceilings(self, device: torch.device, dtype: torch.dtype) -> Ceilings:
        """Measures the limits of the machine, to which the shares of the section refer."""
        found = measure_ceilings(device, dtype)
        copied, read = found.copy_bytes_per_s / 1e9, found.read_bytes_per_s / 1e9
        rate = f"{found.matmul_flop_per_s / 1e12:.1f} TFLOP/s"
        self.add("ceilings", f"{copied:.0f} GB/s copied, {read:.0f} read, {rate}", **asdict(found))
        return found

    @contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """A context that prints and writes an exception, so that the next piece still runs."""
        try:
            yield
        except Exception as error:
            self.has_failed = True
            traceback.print_exc()
            first_line = (str(error).strip().splitlines() or [""])[0]
            self.add(name, f"FAILED: {type(error).__name__}: {first_line[:160]}")

    def _write(self, **content: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            print(json.dumps({"section": self._section, **content}, allow_nan=False), file=file)


def asked(description: str | None, *more: str) -> tuple[Namespace, torch.device]:
    """Parses the arguments that the measuring modules share; `more` are additional ones."""
    parser = ArgumentParser(description=description)
    parser.add_argument("device", help="cuda, or cpu to see whether it works at all")
    parser.add_argument("path", type=Path, help="where the JSON lines go")
    for each in more:
        parser.add_argument(each)
    parser.add_argument("--for", type=float, default=100.0, dest="for_s", help="seconds, about")
    found = parser.parse_args()
    torch.set_num_threads(1)  # on a CPU the work is too small for several threads
    return found, torch.device(found.device)
