"""`batchproof demo`: static waves against continuous batching on the same requests.

All engines get the same slots and the same requests and run twice: once to warm up, once to be timed.
What they did is read from their traces, and every answer is compared with per-prompt generation.
"""

import argparse

from batchproof.demo import pages
from batchproof.demo.experiment import Experiment, judge, make_experiment, run_timed
from batchproof.models.catalogue import load_model, resolve_device, resolve_dtype
from batchproof.models.embedded import EMBEDDED
from batchproof.oracle.oracle import Oracle
from batchproof.run.devices import make_current
from batchproof.run.registry import reference_factory
from batchproof.validation.values import at_least

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
STATIC = "static"
ENGINES = (STATIC, "ragged", "paged")
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
        "--slots",
        type=int,
        default=DEFAULT_SLOTS,
        metavar="N",
        help="sequences in flight at once (default: %(default)s)",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help=f"a prompt of your own, repeatable, of {DEFAULT_CAP} new tokens; replaces the examples",
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every answer equals per-prompt generation or is a proven near-tie, else 1. Raises
    `UsageError`.
    """
    at_least("--slots", arguments.slots, 1)
    device = resolve_device(arguments.device)
    make_current(device)
    asked = [(prompt, DEFAULT_CAP) for prompt in arguments.prompt or ()] or list(EXAMPLES)
    subject = load_model(arguments.model, device, resolve_dtype("float32"))
    return _show(make_experiment(subject, asked, arguments.slots))


def _show(case: Experiment) -> int:
    """Prints section after section, each as soon as it is known, and returns the exit code."""
    _say(pages.heading(case))
    runs = {name: run_timed(name, case, has_waves=name == STATIC) for name in ENGINES}
    _say(pages.timelines({name: each.timeline for name, each in runs.items()}))
    _say(pages.totals(case, runs))
    oracle = Oracle(case.subject, reference_factory())
    judgements = {name: judge(case, each.completions, oracle) for name, each in runs.items()}
    _say(pages.verdict(case, judgements))
    return 1 if any(each.failures for each in judgements.values()) else 0


def _say(lines: list[str]) -> None:
    print("\n".join([*lines, ""]), flush=True)
