"""`batchproof lab mutants ENGINE`: random one-point mutants of an engine before the suite."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import BatchproofError, UsageError
from batchproof.models.embedded import EMBEDDED
from batchproof.records.file_kinds import replace_text
from batchproof.records.provenance import Provenance
from batchproof.records.texts import header, line, without_machine_paths
from batchproof.run.registry import resolve_engine, source_of
from batchproof_lab.campaign import Campaign, CampaignState, Question, add_options
from batchproof_lab.conformance_modules import function_of
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.mutants import Mutant, mutants_of, mutated
from batchproof_lab.suite_run import Effort, SuiteOutcome, process_laboratory, run_suite
from batchproof_lab.worker_pool import LostTask

CALL_LIMIT_S = 20.0  # an honest call takes a fraction of a second, on a busy machine several


@dataclass(frozen=True, slots=True)
class MutantTask:
    """One mutant before `pytest --engine=ENGINE`, with `--model` if there are models. `source` is the
    engine's file or folder; the test functions `first` run first."""

    mutant: Mutant
    engine: str
    source: Path
    seed: int
    models: tuple[str, ...] = ()
    first: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.mutant.name


@dataclass(frozen=True, slots=True)
class MutantFate:
    """What the suite reported: the first test that failed, or what else gave the mutant away. None: it
    survived."""

    killed_by: str | None = None
    report: str = ""  # the first line
    seconds: float = 0.0


def judge_mutant(task: MutantTask) -> MutantFate:
    """Runs the suite on a mutant. Raises `BatchproofError` if the unchanged engine does not pass."""
    num_expected = _num_passed(task.engine, task.source, task.seed, task.models)
    began = time.monotonic()
    with mutated(task.mutant, task.source):
        found = _suite(task.engine, task.seed, task.models, task.first)
    killed_by, report = _reason(found, num_expected)
    return MutantFate(killed_by, report, round(time.monotonic() - began, 1))


@cache
def _num_passed(engine: str, source: Path, seed: int, models: tuple[str, ...]) -> int:
    """Returns how many tests the unchanged engine, imported as a mutant is, passes; a mutant that
    passes fewer has lost a capability or a model."""
    with mutated(None, source):
        found = _suite(engine, seed, models)
    killed_by, report = _reason(found, 0)
    if killed_by is not None:
        raise BatchproofError(f"the unchanged engine does not pass the suite: {killed_by}: {report}")
    return found.num_passed


def _suite(
    engine: str, seed: int, models: tuple[str, ...], first: tuple[str, ...] = ()
) -> SuiteOutcome:
    arguments = ["-x", f"--hypothesis-seed={seed}", "--diagnose-for=0"]
    arguments += (f"--model={each}" for each in models)
    lab = process_laboratory("float32", CALL_LIMIT_S)
    return run_suite(engine, arguments, lab, Effort(profile="default", first=first))


def _reason(found: SuiteOutcome, num_expected: int) -> tuple[str | None, str]:
    """Returns what shows that the engine is changed, or None, and the words for it."""
    if found.catches:
        first = found.first or found.catches[0]
        return function_of(first.test), without_machine_paths(
            first.headline or _last_line(first.report)
        )
    if found.exit_status and not (found.num_passed or found.num_skipped):
        return "before the first test", without_machine_paths(_last_line(found.output))
    if found.num_passed < max(1, num_expected) or found.exit_status:
        return "the table of the run", f"{found.num_passed} of {num_expected} tests pass"
    return None, ""


def _last_line(report: str) -> str:
    return next((each for each in reversed(report.splitlines()) if each.strip()), "").strip()[:200]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE", help="as for pytest --engine")
    parser.add_argument(
        "--source",
        type=Path,
        metavar="PATH",
        help="file or folder to mutate (default: the module of the engine's factory, or its package)",
    )
    choices.add_count(parser, "--mutants", 100, "how many, drawn at random among all points")
    choices.add_repeatable(parser, "--model", "NAME", "default: as without --model")
    # A call of the engine has a limit of its own: that of a mutant is far beyond any run of the suite.
    add_options(parser, seed=1, time_limit=(3600.0, "a mutant counts as hung"))


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if each mutant was tried and none survived, else 1. Raises `UsageError`."""
    engine, seed, output = arguments.engine, arguments.seed, choices.writable(arguments.output)
    known = choices.select_names(arguments.model, EMBEDDED, "embedded model")
    models = tuple(known) if arguments.model else ()
    source = (arguments.source or source_of(resolve_engine(engine))).resolve()
    points = [each for path in _files(source) for each in mutants_of(path)]
    sample = random.Random(seed).sample(points, min(arguments.mutants, len(points)))
    state: CampaignState[MutantFate] = CampaignState(MutantFate)
    asked = {"engine": engine, "seed": seed, "models": models, "mutants": [e.name for e in sample]}
    campaign = Campaign(
        question=Question("mutants", asked, code_digest([source])),
        state=state,
        function=judge_mutant,
        lost_outcome=_lost_fate,
        progress=Progress("mutants", "mutant", len(sample), arguments.progress),
    )

    def tasks() -> Iterator[MutantTask]:
        for mutant in sample:
            killers = Counter(each.killed_by for each in state.outcomes.values() if each.killed_by)
            first = tuple(name for name, _ in killers.most_common())
            yield MutantTask(mutant, engine, source, seed, models, first)

    def finish() -> int:
        tried = {each.name: state.outcomes[each.name] for each in sample if each.name in state.outcomes}
        survivors = [name for name, fate in tried.items() if fate.killed_by is None]
        page = mutants_page(engine, state.made(), tried, len(sample))
        replace_text(output / "mutants.md", page)
        print(*(f"survived: {name}" for name in survivors), sep="\n", end="\n" if survivors else "")
        print(f"{len(tried)} of {len(sample)} mutants tried, {len(survivors)} survived")
        return 1 if survivors or len(tried) < len(sample) else 0

    return campaign.run(arguments, arguments.time_limit, tasks, finish)


def _files(source: Path) -> list[Path]:
    files = [source] if source.suffix == ".py" else sorted(source.rglob("*.py"))
    if not files or not all(each.is_file() for each in files):
        raise UsageError(f"--source '{source}' is neither a Python file nor a folder with one")
    return files


def _lost_fate(task: MutantTask, lost: LostTask) -> MutantFate:
    if lost.has_raised:  # a suite run reports what a mutant raises, so this is none of its doing
        raise BatchproofError(f"{task.key}: {lost.why}")
    return MutantFate("its process", lost.why)


def mutants_page(engine: str, made: Provenance, tried: Mapping[str, MutantFate], num_drawn: int) -> str:
    lines = [f"# Mutants of `{engine}` before the conformance suite", "", *made.lines(), ""]
    lines += [f"{len(tried)} of {num_drawn} mutants were tried.", ""]
    lines += header("mutant", "noticed by", "what was said")
    rows = sorted(tried.items(), key=lambda each: (each[1].killed_by is not None, each[0]))
    lines += [line(f"`{name}`", fate.killed_by or "SURVIVED", fate.report) for name, fate in rows]
    return "\n".join([*lines, ""])
