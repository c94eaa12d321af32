"""Writes `results/kernels.md`: what compilers make of the Triton kernels, for GPUs that
need not be there.

    python -m tests.selftest.paged.kernel_table [TARGET ...]

Needs Triton and ten minutes.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import triton

from batchproof.records.made import command_line, made_now
from tests.selftest.paged.triton_compile import PROCESSORS

RESULTS = Path("results")
INTRODUCTION = """\
# The Triton kernels of `paged`, compiled

{made}
* triton {version}

Each kernel is compiled as it would be launched for these layers: `decode` with a row's keys in one
share and in several (with `merge`), `prefill` of 128 tokens and of 3, `write` with it. A cell gives
registers of a thread, KiB of shared memory of a program, and how many programs run at a time on one
processor. It adds what spills, in bytes of a thread, if anything does. Times are the compiler's.
"""


def measured(target: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.selftest.paged.triton_shapes", target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rows = []
        for line in process.stdout:
            print(line, end="", flush=True)
            rows.append(json.loads(line))
    assert process.returncode == 0, f"compiling for {target} failed"
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    targets = list(dict.fromkeys(row["target"] for row in rows))
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        place = cells.setdefault((row["case"], row["kernel"]), {})
        place.setdefault(row["target"], []).append(_cell(row))
    lines = [f"| layer | kernel | {' | '.join(targets)} |", "|---|---|" + "---|" * len(targets)]
    for (case, kernel), place in cells.items():
        texts = ("<br>".join(place.get(target, ["not compiled"])) for target in targets)
        lines.append(f"| {case} | {kernel} | {' | '.join(texts)} |")
    lines += ["", *(_sum(target, rows) for target in targets)]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    spills = f", **spills {row['spill_bytes']}**" if row["spill_bytes"] else ""
    kib = f"{row['shared_bytes'] / 1024:.1f}".removesuffix(".0")
    return f"{row['registers']}, {kib}, {row['programs']}{spills}"


def _sum(target: str, rows: list[dict[str, Any]]) -> str:
    own = [row for row in rows if row["target"] == target]
    spilled = sum(row["spill_bytes"] > 0 for row in own)
    seconds = sum(row["compile_s"] for row in own)
    return f"* {target}: {len(own)} kernels in {seconds:.0f} s, {spilled} of them with spills"


def main(arguments: list[str]) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(PROCESSORS))
    given = parser.parse_args(arguments)
    rows = [row for target in given.targets for row in measured(target)]
    made = "\n".join(made_now(command_line("python -m tests.selftest.paged.kernel_table")).lines())
    introduction = INTRODUCTION.format(made=made, version=triton.__version__)
    (RESULTS / "kernels.md").write_text(f"{introduction}\n{table(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
