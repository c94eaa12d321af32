"""`batchproof lab models`: which causal LMs of transformers does an engine serve, and does it
refuse the others when it is built? Every type of the library is tried as a tiny random model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from batchproof.api import EngineConfig
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import UnsupportedModelError, UsageError
from batchproof.models.random_models import build_llama_random
from batchproof.records.texts import header, line
from batchproof.run.registry import resolve_engine, source_of
from batchproof_lab.campaign import Campaign, CampaignState, Question, add_options
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.model_sweep.toy_check import ToyResult, ToyTask, ToyVerdict, check_toy
from batchproof_lab.model_sweep.toys import model_types, toys_of
from batchproof_lab.record_kinds import MODEL_SWEEP, ModelSweepRecord, SweepCounts, ToyRecord

ENGINE = "paged"
LEGEND = """\
Each type is made small (two layers, or as many as it has kinds of layers; width 64; a window of 5 keys)
and its weights are drawn at random. Six requests of 1 to 33 prompt tokens go through fewer slots:
packed beside others' decodes, in chunks of at most 8 tokens a step, with preemption, and beside
requests that are aborted; in float32, and then in bfloat16.

* **served**: every token and every logit is that of per-prompt generation, within rounding. `worst` is
  the largest difference of a logit from float64 in units of E, the reference's own; beyond 8 is wrong,
  in bfloat16 beyond 3. There is no figure in bfloat16 where rounding alone moves the logits by more
  than 5 % of their spread, as where it sends a token to another expert. The reason says how the model
  is served, if not as packed rows with the engine's own attention.
* **refused**: `UnsupportedModelError` when the engine is built, with this reason.
* **not buildable**: there is no small model, or it does not take token ids alone.
* **unproven**: the toy does not answer to all of its context, or the reference contradicts itself.
* **WRONG**: the engine accepts it, but its answers differ, or it crashes or hangs.

A row `type, form` is a type in another form than by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types (default: all)")
    parser.add_argument(
        "--engine",
        default=ENGINE,
        metavar="E",
        help="the engine to try, as for pytest --engine (default: %(default)s)",
    )
    add_options(parser, seed=0, time_limit=(120.0, "a toy is given up"))


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if nothing is WRONG, else 1. A sweep over some types, of another engine than the
    default, or stopped with Ctrl-C is written to `models-partial.*`."""
    known = model_types()
    types = choices.select_names(arguments.types, known, "causal LM of this version of transformers")
    _try(arguments.engine)
    output = choices.writable(arguments.output)
    asked = {"types": types, "engine": arguments.engine, "seed": arguments.seed}
    asked |= {"time_limit": arguments.time_limit}
    sources = []
    with suppress(UsageError):  # it is no Python
        sources.append(source_of(resolve_engine(arguments.engine)))
    toys = [toy for model_type in types for toy in toys_of(model_type)]
    state: CampaignState[ToyRecord] = CampaignState(ToyRecord)
    campaign = Campaign(
        question=Question("models", asked, code_digest(sources)),
        state=state,
        function=_judge,
        lost_outcome=lambda task, lost: _toy_record(task, ToyResult(ToyVerdict.WRONG, lost.why)),
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


def _judge(task: ToyTask) -> ToyRecord:
    """Checks a toy in a worker, on one thread since workers share the cores."""
    torch.set_num_threads(1)
    return _toy_record(task, check_toy(task))


def _toy_record(task: ToyTask, found: ToyResult) -> ToyRecord:
    return ToyRecord(task.toy.model_type, task.toy.form, **asdict(found))


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
    lines = [f"# Causal LMs of transformers before `{record.engine}`", ""]
    lines += [*record.made.lines(), f"* seed {record.seed}", ""]
    if not record.is_complete:
        lines += ["INCOMPLETE: it was stopped before all types were tried.", ""]
    version = record.made.versions.get("transformers", "?")
    types, forms = map(_counts_text, (record.counts.types, record.counts.forms))
    lines += [
        f"Of {record.num_types} types of transformers {version}: {types}. "
        f"Of other forms of them: {forms}.",
        *("", LEGEND, ""),
        *header("type", "verdict", "worst", "in bfloat16", "E", "layers", "tokens", "reason"),
    ]
    for toy in record.toys:
        worst, worst_bfloat16 = (
            "" if each is None else f"{each:.2f}" for each in (toy.worst, toy.worst_bfloat16)
        )
        unit = "" if toy.error_unit is None else f"{toy.error_unit:.1e}"
        figures = (worst, worst_bfloat16, unit, toy.layers, str(toy.num_tokens or ""))
        lines.append(line(toy.name, toy.verdict, *figures, toy.reason))
    return "\n".join([*lines, ""])


def _counts_text(counts: Mapping[str, int]) -> str:
    shown = [f"{count} {verdict}" for verdict, count in counts.items() if count or verdict == "WRONG"]
    return ", ".join(shown)
