"""Writes `results/kernels.md`: what compilers make of the Triton kernels, for GPUs that
need not be there.

    python -m tests.selftest.paged.kernel_table [--before FILE] [TARGET ...]

Needs Triton and ten minutes. FILE holds lines that `triton_shapes` printed for earlier kernels.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

import triton

from batchproof.records.provenance import command_line, made_now
from batchproof_paged import triton_splits
from batchproof_paged.triton_splits import splits_for
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
COMPARISON = """\
## Before and after

`copies` are asynchronous ones to shared memory in the whole kernel, of 16 bytes (keys and values) and
of 4 (entries of block tables); `loop_instructions` are those of a tile of keys.
"""
DIVISION = """\
## Shares of a row

How many there are, and of how many keys at least, for the rows of a step and the keys that their tables
have room for (8 key heads of 128 dimensions, bfloat16, 132 processors). In brackets: if the choice
counted with all those keys, as it used to.
"""
COMPARED = (
    "registers",
    "spill_bytes",
    "shared_bytes",
    "programs",
    "copies",
    "small_copies",
    "loop_instructions",
)
DIVIDED = (1, 8, 64, 256), (1024, 2048, 4096, 32_768, 131_072)  # rows, keys that a table has room for


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


def comparison(rows: list[dict[str, Any]], before: Path) -> str:
    """Returns a table of the kernels that iterate over keys, for the layers and targets of `before`."""
    place = itemgetter("target", "case", "kernel", "settings")
    after: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        after.setdefault(place(row), []).append(row)
    lines = [
        COMPARISON,
        f"| target | layer | kernel | {' | '.join(COMPARED)} |",
        "|---|---|---|" + "---|" * len(COMPARED),
    ]
    for old in map(json.loads, before.read_text().splitlines()):
        if old["loop_instructions"]:
            new = after[place(old)].pop(0)
            cells = (f"{old[name]} -> {new[name]}" for name in COMPARED)
            names = old["target"], old["case"], f"{old['kernel']} {old['settings']}"
            lines.append(f"| {' | '.join((*names, *cells))} |")
    return "\n".join(lines) + "\n"


def division() -> str:
    """Returns a table of the shares into which rows of the 8B shape are divided on an H200."""
    rows, widths = DIVIDED
    lines = [
        DIVISION,
        f"| rows | {' | '.join(f'{width:,}' for width in widths)} |",
        "|---|" + "---|" * len(widths),
    ]
    for num in rows:
        cells = []
        for width in widths:
            divided = splits_for(8 * num, width, 32, 4 * 132)
            with mock.patch.multiple(triton_splits, USUAL_KEYS=width, EVEN_KEYS=width):
                by_width = splits_for.__wrapped__(8 * num, width, 32, 4 * 132)
            least = f" of {32 * divided.min_tiles}" * (divided.num > 1)
            cells.append(f"{divided.num}{least} ({by_width.num})")
        lines.append(f"| {num} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(PROCESSORS))
    parser.add_argument("--before", type=Path)
    given = parser.parse_args(arguments)
    rows = [row for target in given.targets for row in measured(target)]
    write(rows, command_line("python -m tests.selftest.paged.kernel_table"), given.before)


def write(rows: list[dict[str, Any]], command: str, before: Path | None) -> None:
    introduction = INTRODUCTION.format(
        made="\n".join(made_now(command).lines()), version=triton.__version__
    )
    parts = introduction, table(rows), division(), *([comparison(rows, before)] if before else [])
    (RESULTS / "kernels.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main(sys.argv[1:])
