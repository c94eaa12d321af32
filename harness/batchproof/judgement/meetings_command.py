"""`batchproof judge meetings ENGINE`: a page of what met what on an engine, and how often."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from batchproof.cli import choices
from batchproof.generators.covering import meetings
from batchproof.models.embedded import DEFAULT_MODELS
from batchproof.records.file_kinds import replace_text
from batchproof.records.provenance import made_now
from batchproof.records.texts import header, line
from batchproof.requirements.promises import Promise
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.meeting import Meetings
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial

TIME_LIMIT_S = 60.0  # of an engine call
LEGEND = """\
A number says in how many workloads the two were shown: by the trace where it can tell (chunks, prefix
hits, preemptions, waiting, drafts, arrivals), by the answers (ends, aborts), else by the workload as it
stands. `0` was never shown; `.` cannot occur, or needs what the engine lacks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE", help="as for pytest --engine")
    parser.add_argument(
        "--model", default=DEFAULT_MODELS[0], metavar="M", help="one model (default: %(default)s)"
    )
    parser.add_argument(
        "--strength",
        type=int,
        choices=(2, 3),
        default=2,
        help="2: every two features meet; 3: every three (default: %(default)s)",
    )
    choices.add_seed(parser)
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="(default: print it)")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if all that can meet was shown, 1 if something was not, or an answer is wrong. Raises
    `UsageError`, and what an engine raises that refuses the model."""
    spec = resolve_engine(arguments.engine)
    with exact_device("cpu") as device, num_threads(1):
        import torch  # noqa: PLC0415 - after bad arguments are refused

        lab = Laboratory(device, torch.float32, TIME_LIMIT_S)
        subject = lab.subject(arguments.model)
        capabilities = lab.capabilities(spec, subject)
        trial = Trial(lab, spec, lab.oracle(subject.name), capabilities, Promise.P1)
        met = Meetings(trial, arguments.seed, arguments.strength)
        try:
            met.serve_design()
            met.serve_missing()
        except (ConformanceFailure, HangFailure) as failure:
            print(failure)
            return 1
    text = "\n".join(page(met, spec.name, arguments.model, arguments.seed)) + "\n"
    if arguments.output is None:
        print(text)
    else:
        replace_text(arguments.output, text)
    return int(bool(met.missing))


def page(met: Meetings, engine: str, model: str, seed: int) -> Iterator[str]:
    """Yields the lines of the page: what is missing, then a table for each dimension."""
    size, missing = met.strength, met.missing
    num_possible = sum(1 for _ in meetings(met.choices, size, met.excluded))
    yield from ("# What met what", "", *made_now().lines())
    yield f"* engine {engine}, model {model}, seed {seed}: {met.num_served} workloads"
    yield f"* {num_possible - len(missing)} of {num_possible} meetings of {size} were shown"
    yield from (f"* never shown: {' and '.join(map('='.join, each))}" for each in missing)
    yield from ("", LEGEND)
    pairs = met.counts[2]
    can_meet = {*meetings(met.choices, 2, met.excluded)}
    dimensions = [*met.choices.items()]
    for place, (name, values) in enumerate(dimensions[:-1], start=1):
        rows = [(other, value) for other, its in dimensions[place:] for value in its]
        yield from ("", *header(name, *values))
        for row in rows:
            keys = [tuple(sorted(((name, value), row))) for value in values]
            cells = (str(pairs[key]) if key in can_meet else "." for key in keys)
            yield line("=".join(row), *cells)
