"""`batchproof lab models`: which causal LMs of transformers does an engine serve, and does it
refuse the others when it is built? Every type of the library is tried as a tiny random model."""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batchproof.api import EngineConfig
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import UnsupportedModelError, UsageError
from batchproof.models.random_models import build_llama_random
from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance
from batchproof.run.registry import resolve_engine, source_of
from batchproof_lab.campaign import Campaign, CampaignState, Question, add_options
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.model_sweep.toy_check import ToyRecord, ToyTask, ToyVerdict, check_toy
from batchproof_lab.model_sweep.toys import model_types, toys_of
from batchproof_lab.pages import page

ENGINE = "paged"


@dataclass(frozen=True)
class SweepCounts:
    """The number of models by verdict, for types in their default form and in other forms."""

    types: Mapping[str, int]
    forms: Mapping[str, int]


@dataclass(frozen=True)
class ModelSweepRecord:
    """A sweep over types of models with one engine."""

    made: Provenance
    is_complete: bool
    engine: str
    seed: int
    num_types: int
    counts: SweepCounts
    toys: tuple[ToyRecord, ...]


MODEL_SWEEP = FileKind("model sweep", "batchproof.models", 2, ModelSweepRecord)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types (default: all)")
    parser.add_argument(
        "--engine",
        default=ENGINE,
        metavar="E",
        help="the engine to try, as for pytest --engine (default: %(default)s)",
    )
    choices.add_seed(parser, 0)
    choices.add_time_limit(parser, 120.0, "seconds after which a toy is given up")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if nothing is WRONG, else 1. A sweep over some types, of another engine than the
    default, or stopped with Ctrl-C is written to `models-partial.*`."""
    known = model_types()
    types = choices.select_names(arguments.types, known, "causal LM of this version of transformers")
    _try(arguments.engine)
    output = choices.writable(arguments.output)
    asked = (types, arguments.engine, arguments.seed, arguments.time_limit)
    sources = []
    with suppress(UsageError):  # it is no Python
        sources.append(source_of(resolve_engine(arguments.engine)))
    toys = [toy for model_type in types for toy in toys_of(model_type)]
    state: CampaignState[ToyRecord] = CampaignState(ToyRecord)
    campaign = Campaign(
        question=Question("models", repr(asked), code_digest(sources)),
        state=state,
        function=check_toy,
        lost_outcome=lambda task, lost: task.record(ToyVerdict.WRONG, lost.why),
        progress=Progress("models", "toy", len(toys), arguments.progress),
    )
    tasks = [ToyTask(toy, arguments.engine, arguments.seed, arguments.time_limit) for toy in toys]

    def finish() -> int:
        done = [state.outcomes[str(toy)] for toy in toys if str(toy) in state.outcomes]
        record = ModelSweepRecord(
            made=state.made(),
            is_complete=len(done) == len(toys),
            engine=arguments.engine,
            seed=arguments.seed,
            num_types=len(types),
            counts=SweepCounts(
                types=_counts(toy for toy in done if not toy.form),
                forms=_counts(toy for toy in done if toy.form),
            ),
            toys=tuple(done),
        )
        is_full = record.engine == ENGINE and types == list(known)
        return _write(record, record.is_complete and is_full, output)

    return campaign.run(arguments, arguments.time_limit, lambda: tasks, finish)


def _try(engine: str) -> None:
    """Builds the engine once, so that a mistake in its name or options is reported once. Raises
    `UsageError` or `ConfigError`."""
    factory = resolve_engine(engine).factory
    with suppress(UnsupportedModelError):  # it may serve others
        factory(build_llama_random(), EngineConfig())


def _write(record: ModelSweepRecord, is_whole: bool, output: Path) -> int:
    write_result(MODEL_SWEEP, record, models_page, output, "models", is_whole)
    wrong = [toy for toy in record.toys if toy.verdict == ToyVerdict.WRONG]
    for toy in wrong:
        print(f"WRONG {toy.name}: {toy.reason}")
    counts = record.counts.types.items()
    print(", ".join(f"{count} {verdict}" for verdict, count in counts), "of the types")
    return 1 if wrong else 0


def _counts(toys: Iterable[ToyRecord]) -> dict[str, int]:
    counts = Counter(each.verdict for each in toys)
    return {str(verdict): counts[str(verdict)] for verdict in ToyVerdict}


def models_page(record: ModelSweepRecord) -> str:
    return page("models", record=record)
