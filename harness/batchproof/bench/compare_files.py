"""`python -m batchproof compare A B`: is B slower than A, on rows that measure the same thing?

Exit codes: 0 nothing is slower than allowed; 1 a row is slower by more than `--fail-over` or no longer
VALID; 2 nothing can be compared.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchproof.bench.matched_rows import (
    ComparisonKey,
    ResultIndex,
    RowKey,
    RowPair,
    index_result,
    matched,
    named,
    warnings_about,
)
from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to its parser."""
    parser.add_argument("before", type=Path, metavar="A", help="the result file before a change")
    parser.add_argument("after", type=Path, metavar="B", help="the result file after it")
    parser.add_argument(
        "--fail-over",
        type=_percent,
        metavar="P%",
        help="exit with 1 if a row lost more than this of its throughput, as 5%% (default: only show)",
    )


def _percent(value: str) -> float:
    """Returns a share of 1 for `5%`, `5 %` or `5`."""
    try:
        number = float(value.strip().removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < 100:
        raise argparse.ArgumentTypeError(
            f"{value!r} must be a percentage from 0% to less than 100%, such as 5%"
        )
    return number / 100


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison and returns the exit code. Raises `UsageError` for files that cannot be
    compared."""
    results = load(arguments.before), load(arguments.after)
    a, b = (index_result(each) for each in results)
    pairs = matched(a, b)
    for warning in warnings_about(*results):
        print(f"warning: {warning}", file=sys.stderr)
    lines = [
        *_heading("A", arguments.before, results[0]),
        *_heading("B", arguments.after, results[1]),
        "",
        "Throughput of B over A, with 95 % intervals; above 1, B is faster",
        *_sections(pairs, a, b, arguments.fail_over),
        *_only_in("A", [key for key in a.rows if key not in b.rows]),
        *_only_in("B", [key for key in b.rows if key not in a.rows]),
        "",
        *_summary(pairs, arguments.fail_over),
    ]
    gone = _gone(a, b) if arguments.fail_over is not None else []
    lines += [f"FAILED: {each} is in A, and B has its workload without it" for each in named(gone)]
    print("\n".join(lines))
    return 1 if gone or any(_is_failure(each, arguments.fail_over) for each in pairs) else 0


def _gone(a: ResultIndex, b: ResultIndex) -> list[RowKey]:
    """Returns engines of A whose comparison was repeated in B without them: no gate may pass that."""
    places = {key.place for key in b.rows}
    return [key for key in a.rows if key not in b.rows and key.place in places]


def _is_failure(pair: RowPair, fail_over: float | None) -> bool:
    if pair.obstacle is not None:
        return pair.has_become_invalid
    return fail_over is not None and pair.ratio.ratio < 1 - fail_over


def _heading(letter: str, path: Path, result: dict[str, Any]) -> list[str]:
    made = result["header"]["made"]
    return [
        f"{letter}  {path}",
        f"   {made.get('date', 'undated')}, commit {made.get('commit', 'unknown')}",
    ]


def _sections(
    pairs: Sequence[RowPair], a: ResultIndex, b: ResultIndex, fail_over: float | None
) -> list[str]:
    """Returns one section for each workload and model: its rows, then the ratios between its
    engines."""
    lines = []
    width = max(len(each.key.label) for each in pairs)
    for place in dict.fromkeys(each.key.place for each in pairs):
        members = [each for each in pairs if each.key.place == place]
        lines += ["", str(place)]
        for each in members:
            lines += _wrapped(f"{each.key.label:{width}}  {_verdict_on(each, fail_over)}")
        lines += _between_engines(place, members, a, b)
    return lines


def _verdict_on(pair: RowPair, fail_over: float | None) -> str:
    if pair.obstacle is not None:
        return f"{'FAILED' if pair.has_become_invalid else 'not compared'}, {pair.obstacle}"
    ratio = pair.ratio
    change = f"{'slower' if ratio.ratio < 1 else 'faster'} by {abs(ratio.ratio - 1):.1%}"
    if _is_failure(pair, fail_over):  # the ratio decides; its interval only says how certain it is
        doubt = "" if ratio.is_different else ", though its interval does not exclude 1"
        return f"{ratio.figures()}  FAILED, {change}{doubt}"
    return f"{ratio.figures()}  {change if ratio.is_different else 'no difference shown'}"


def _between_engines(
    place: ComparisonKey, pairs: Sequence[RowPair], a: ResultIndex, b: ResultIndex
) -> list[str]:
    """Returns how the ratio of two engines differs, where both files have it."""
    engines = {each.key.engine for each in pairs if each.obstacle is None}
    lines = []
    for (at, engine, over), before in a.ratios.items():
        after = b.ratio(place, engine, over)
        if at == place and after is not None and engines.issuperset((engine, over)):
            figures = f"A {before.figures()}, B {after.figures()}:"
            lines += _wrapped(f"{engine} over {over}: {figures} {_overlap(before, after)}")
    return lines


def _overlap(a: Ratio, b: Ratio) -> str:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return "too few laps for an interval"
    is_overlap = max(a.low, b.low) <= min(a.high, b.high)
    return "the intervals overlap" if is_overlap else "the intervals do not overlap"


def _wrapped(text: str) -> list[str]:
    """Wraps a line to the terminal, without breaking inside an interval."""
    width = max(80, shutil.get_terminal_size().columns)
    tied = re.sub(r"\[\S+ \S+\]", lambda found: found[0].replace(" ", "\0"), text)
    wrapped = textwrap.wrap(tied, width, initial_indent="  ", subsequent_indent=" " * 6)
    return [line.replace("\0", " ") for line in wrapped]


def _only_in(letter: str, keys: Sequence[RowKey]) -> list[str]:
    if not keys:
        return []
    return ["", f"Only in {letter}", *(line for each in named(keys) for line in _wrapped(each))]


def _summary(pairs: Sequence[RowPair], fail_over: float | None) -> list[str]:
    num_compared = sum(each.obstacle is None for each in pairs)
    num_invalid = sum(each.has_become_invalid for each in pairs)
    lines = [f"{num_compared} of {len(pairs)} rows compared"]
    if num_invalid:
        lines.append(f"FAILED: {num_invalid} VALID in A, INVALID in B")
    if fail_over is not None:
        num_slower = sum(_is_failure(each, fail_over) for each in pairs) - num_invalid
        verdict = f"FAILED: {num_slower}" if num_slower else "none"
        lines.append(f"{verdict} slower by more than {fail_over * 100:g}%")
    return lines
