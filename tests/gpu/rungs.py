"""The ladder: engines that do the same with ever less machinery. A run goes on with the first that
passes, so that a fault of one option does not cost it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchproof.records.provenance import provenance

Options = Mapping[str, str]

WITHOUT_COMPILER = {"compile": "false"}
WITHOUT_GRAPHS = {"graphs": "false"}
# Relative to the defaults on CUDA, the fastest first: which of the compiler and the graphs is at fault,
# then both; the last leaves out Triton as well, and all that is asynchronous.
RUNGS: tuple[Options, ...] = (
    {},
    WITHOUT_COMPILER,
    WITHOUT_GRAPHS,
    {**WITHOUT_GRAPHS, **WITHOUT_COMPILER},
    {**WITHOUT_GRAPHS, **WITHOUT_COMPILER, "backend": "blocks", "overlap": "false", "prepare": "false"},
)
# What is closest on a CPU to the defaults on CUDA.
DRY: Options = {"backend": "blocks", "compile": "eager"} | dict.fromkeys(
    ("graphs", "overlap", "prepare"), "true"
)
TESTS = "smoke or full_batch or newcomer_joins"  # few rows and many, prompts beside decodes
COMPARED = "commit", "machine", "versions"
SECTION = "ladder"  # of the measures; the engine follows


def options_of(engine: str) -> Options:
    return dict(each.split("=", 1) for each in engine.partition("?")[2].split("&") if each)


def engine_with(engine: str, options: Options) -> str:
    """Returns the engine, as it is written after `--engine`, with options added or replaced."""
    named = {**options_of(engine), **options}
    typed = "&".join(f"{key}={value}" for key, value in named.items())
    return "?".join(filter(None, (engine.partition("?")[0], typed)))


def passed_before(measures: Path, rungs: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the rungs from the first on that has passed in an earlier call of this commit, on this
    machine and with these versions; none if none has."""
    lines = readable(measures)
    made = {line["section"]: line["made"] for line in lines if "made" in line}
    now = provenance()
    good = {
        line.get("engine")
        for line in lines
        if line.get("has_passed")
        and all(made.get(line["section"], {}).get(each) == now[each] for each in COMPARED)
    }
    known = [each for each in rungs if each in good]
    return rungs[rungs.index(known[0]) :] if known else ()


def readable(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of `measures.jsonl` that are objects with a section, and prints how many are
    not: one that a kill has damaged costs no other."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [each for each in map(_parsed, lines) if each is not None]
    if len(found) < len(lines):
        num_bad = len(lines) - len(found)
        print(f"{path.name}: {num_bad} of {len(lines)} lines cannot be read, and are left out")
    return found


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "section" in found else None
