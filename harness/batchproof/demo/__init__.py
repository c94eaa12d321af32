"""`batchproof demo`: static waves against continuous batching on the same requests.

All engines get the same slots and the same requests and run twice: once to warm up, once to be timed.
What they did is read from their traces, and every answer is compared with per-prompt generation.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from importlib.util import find_spec
from pathlib import Path

from batchproof.demo import pages
from batchproof.demo.experiment import LETTERS, Experiment, judge, make_experiment, run_timed
from batchproof.demo.pages import many
from batchproof.errors import UsageError
from batchproof.models.catalogue import load_model, resolve_device, resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.oracle.oracle import Oracle
from batchproof.records.file_kinds import replace_text
from batchproof.run.devices import make_current
from batchproof.run.registry import reference_factory
from batchproof.run.timeline import Timeline

# Prompts and caps, short beside long: with equal ones static waves would lose nothing.
EXAMPLES = (
    ("The night train to Lisbon is", 3),
    ("Fog until noon, then", 22),
    ("A cold engine needs", 6),
    ("Rain tomorrow?", 4),
    ("When the conductor asks for the tickets, the man in seat nine", 14),
    ("Steam rises", 20),
    ("North wind, and", 3),
    ("The last wagon carries", 9),
)
STATIC, CONTINUOUS, PAGED = "static", "ragged", "paged"  # engines, as `--engine` names them
HEADINGS = {
    STATIC: "Static batching (static)",
    CONTINUOUS: "Continuous batching (ragged)",
    PAGED: "Continuous batching on a paged cache (paged)",
}
DEFAULT_SLOTS = 3
DEFAULT_CAP = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default=next(iter(EMBEDDED)),
        help=f"{', '.join(EMBEDDED)}, or a causal LM by hub id or path (default: %(default)s)",
    )
    parser.add_argument(
        "--device", default="auto", help="auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:N, mps"
    )
    parser.add_argument(
        "--dtype", default="float32", help=f"{', '.join(DTYPES)} (default: %(default)s)"
    )
    parser.add_argument(
        "--slots",
        type=_count,
        default=DEFAULT_SLOTS,
        metavar="N",
        help=f"sequences in flight at once, 1 to {len(LETTERS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="a prompt of your own, repeatable; replaces the examples",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=_count,
        metavar="N",
        help=f"the cap of each --prompt (default: {DEFAULT_CAP})",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the slot timelines to FILE")


def _count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} must be a whole number of at least 1")
    return int(value)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every answer equals per-prompt generation or is a proven near-tie, else 1. Raises
    `UsageError`.
    """
    if arguments.svg is not None:
        _check_writable(arguments.svg)
    asked = _asked(arguments)
    if arguments.slots > len(LETTERS):
        raise UsageError(f"--slots {arguments.slots} is too many to draw: choose 1 to {len(LETTERS)}")
    device, dtype = resolve_device(arguments.device), resolve_dtype(arguments.dtype)
    make_current(device)
    case = make_experiment(load_model(arguments.model, device, dtype), asked, arguments.slots)
    return _show(case, arguments.svg, max(80, shutil.get_terminal_size().columns))


def _asked(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Returns prompts and caps, as typed or from the examples."""
    if arguments.prompt is None:
        if arguments.max_new_tokens is not None:
            raise UsageError(
                f"--max-new-tokens {arguments.max_new_tokens} is the cap of your own prompts: give "
                f"--prompt too, or leave it out, since the examples have caps of their own"
            )
        return list(EXAMPLES)
    if "" in arguments.prompt:
        raise UsageError("--prompt '' is empty, but must hold at least one character")
    if len(arguments.prompt) > len(LETTERS):
        raise UsageError(
            f"--prompt is given {len(arguments.prompt)} times, but there are {len(LETTERS)} letters"
        )
    return [(prompt, arguments.max_new_tokens or DEFAULT_CAP) for prompt in arguments.prompt]


def _check_writable(path: Path) -> None:
    """Raises `UsageError` before the work is done, not after it."""
    if find_spec("matplotlib") is None:
        raise UsageError("--svg draws with matplotlib, so install it: pip install matplotlib")
    if path.is_dir():
        raise UsageError(f"--svg '{path}' is a directory, but must name a file")
    if not path.parent.is_dir():
        raise UsageError(f"--svg '{path}' cannot be written: there is no directory '{path.parent}'")


def _show(case: Experiment, svg: Path | None, width: int) -> int:
    """Prints section after section, each as soon as it is known, and returns the exit code."""
    _say(pages.heading(case, width))
    runs = {STATIC: run_timed(STATIC, case, has_waves=True)}
    _say(pages.static_log(case, runs[STATIC], width))
    runs[CONTINUOUS] = run_timed(CONTINUOUS, case, has_waves=False)
    _say(pages.continuous_log(case, runs[CONTINUOUS], width))
    runs[PAGED] = run_timed(PAGED, case, has_waves=False)
    timelines = {name: each.timeline for name, each in runs.items()}
    _say(pages.timelines(timelines, width))
    if svg is not None:
        _draw(svg, case, {HEADINGS[name]: each for name, each in timelines.items()})
    _say(pages.totals(case, runs, width))
    oracle = Oracle(case.subject, reference_factory())
    judgements = {name: judge(case, each.completions, oracle) for name, each in runs.items()}
    _say(pages.verdict(case, judgements, runs[CONTINUOUS], width))
    return 1 if any(each.failures for each in judgements.values()) else 0


def _draw(path: Path, case: Experiment, timelines: dict[str, Timeline]) -> None:
    module = importlib.import_module("batchproof.demo.timeline_figure")  # imports matplotlib
    note = (
        f"{many(len(case.requests), 'request')} on {many(case.num_slots, 'slot')}; a step is one pass "
        f"through the model ({case.subject.name})"
    )
    replace_text(path, module.timeline_chart(timelines).standalone(note))
    _say([f"   The same as a picture: {path}"])


def _say(lines: list[str]) -> None:
    print("\n".join([*lines, ""]), flush=True)
