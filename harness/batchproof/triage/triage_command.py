"""`batchproof triage ENGINE...`: corruption, rounding, a configuration, or nothing found.

Exit status: 1 if an engine is CORRUPTION, else 3 if one is CONFIG, else 2 if one answers nothing, else
0: all are CLEAN or ROUNDING. 2 for wrong input, too.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.result_files import write_result
from batchproof.errors import EngineHang, UnsupportedModelError, UsageError
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.provenance import made_now
from batchproof.records.triage import (
    CLEAN,
    CONFIG,
    CORRUPTION,
    ROUNDING,
    TRIAGE,
    VERDICTS,
    EngineTriage,
    ModelTriage,
    TriageRecord,
)
from batchproof.requirements.promises import Promise
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.engine_names import has_own_process, parse_options
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, engines_module, resolve_engine
from batchproof.run.trial import Trial
from batchproof.triage.configurations import measured_bounds
from batchproof.triage.probes import NoAnswerError, failure_file, seeded_probes
from batchproof.triage.triage import Triage

DEFAULT_MODELS = ("gpt2-hash", "llama-twins", "mistral-hash", "bamba-hash")
ONE_MODEL = ("llama-twins",)  # of an engine whose server has a single checkpoint
EXIT_CODES = {CLEAN: 0, ROUNDING: 0, CORRUPTION: 1, CONFIG: 3}
UNKNOWN = 2
TIME_LIMIT_S = 300.0
WHEN = "during triage"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(
        parser, f"as for pytest --engine, or the URL of a server (default: those of {OWN})"
    )
    choices.add_repeatable(
        parser,
        "--model",
        "M",
        f"{', '.join(EMBEDDED)}, or a causal LM by hub id or path; repeatable (default: what a "
        f"server's model is named after, else {', '.join(DEFAULT_MODELS)})",
    )
    parser.add_argument(
        "--dtype", default="float32", metavar="D", help=f"of the model: {', '.join(DTYPES)}"
    )
    parser.add_argument("--device", default="cpu", help="where the models are (default: cpu)")
    choices.add_seed(parser)
    choices.add_time_limit(parser, TIME_LIMIT_S, "seconds for an engine")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("triage"),
        metavar="DIR",
        help="where record, page and failures go (default: triage/)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit status. Raises `UsageError` for an unknown engine, model, dtype or device."""
    engines = arguments.engines or required_engines(find())
    output = choices.writable(arguments.output)
    found: list[EngineTriage] = []
    with exact_device(arguments.device) as device, num_threads(torch.get_num_threads()):
        # A call may take the whole time: a slow engine is not corrupt.
        lab = Laboratory(device, resolve_dtype(arguments.dtype), arguments.time_limit)
        texts = [_with_server(each) for each in dict.fromkeys(engines)]
        for spec in [resolve_engine(each) for each in texts]:
            models = arguments.model or _models_of(spec.name)
            found.append(_on_models(lab, spec, models, arguments, output))
            print("\n".join(_engine_lines(found[-1])), flush=True)
    record = TriageRecord(made_now(), arguments.seed, tuple(found))
    write_result(TRIAGE, record, _page, output, "triage", is_whole=True)
    codes = {UNKNOWN if each.verdict is None else EXIT_CODES[each.verdict] for each in found}
    return next(code for code in (1, 3, UNKNOWN, 0) if code in codes)


def _with_server(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator and "?" not in scheme and scheme not in ("http", "https"):
        raise UsageError(f"{text!r} begins with {scheme}://, but a server is http:// or https://")
    if not text.startswith(("http://", "https://")):
        return text
    return str(engines_module("adapters.openai").text_for(text))


def _models_of(text: str) -> Sequence[str]:
    served = parse_options(text, text.partition("?")[2]).get("model") if "?" in text else None
    if served is not None and Path(str(served)).name in EMBEDDED:
        return (Path(str(served)).name,)
    if text.startswith("openai"):
        raise UsageError(
            f"the server's model {served!r} is named after none of {', '.join(EMBEDDED)}: name its "
            f"checkpoint with --model"
        )
    return ONE_MODEL if has_own_process(text) else DEFAULT_MODELS


def _on_models(
    lab: Laboratory,
    spec: EngineSpec,
    models: Sequence[str],
    arguments: argparse.Namespace,
    output: Path,
) -> EngineTriage:
    """The verdict on an engine. Models that it does not serve are named; the first on which answers
    are corrupt is the last."""
    end = time.monotonic() + arguments.time_limit
    found: list[ModelTriage] = []
    refusals: list[str] = []
    for number, model in enumerate(models):
        now = time.monotonic()
        deadline = now + max(0.0, end - now) / (len(models) - number)
        note = f"{model}: measuring here what rounding explains, then asking {spec.name}"
        print(note, file=sys.stderr, flush=True)
        try:
            found.append(_on_model(lab, spec, model, deadline, arguments.seed, output))
        except UnsupportedModelError as error:
            refusals.append(f"{model}: it refuses the model: {error}")
        except (NoAnswerError, EngineHang) as error:
            refusals.append(f"{model}: nothing can be said: {error}")
        lab.look_after(spec, lab.subject(model), WHEN)
        if found and found[-1].verdict == CORRUPTION:
            break
    worst = max((each.verdict for each in found), key=VERDICTS.index, default=None)
    return EngineTriage(spec.name, worst, tuple(found), tuple(refusals))


def _on_model(
    lab: Laboratory, spec: EngineSpec, model: str, deadline: float, seed: int, output: Path
) -> ModelTriage:
    oracle = lab.oracle(model)
    trial = Trial(lab, spec, oracle, lab.capabilities(spec, oracle.subject), Promise.P1)
    bounds = measured_bounds(oracle)
    probes = seeded_probes(oracle, bounds.unit, seed)
    triage, began = Triage(trial, bounds, probes, seed, deadline), time.monotonic()
    decision = triage.decide()
    seconds = round(time.monotonic() - began, 1)
    is_measured = bounds.unit is not None and decision.verdict != CORRUPTION
    regrets = {key: reading.worst for key, (reading, _) in triage.worst.items() if is_measured}
    in_units = {key: each / (bounds.unit or 1.0) for key, each in regrets.items()}
    return ModelTriage(
        model=model,
        dtype=trial.subject.dtype_name,
        verdict=decision.verdict,
        why=decision.why,
        evidence=decision.lines,
        error_unit=bounds.unit,
        worst_alone=in_units.get(True),
        worst_batched=in_units.get(False),
        as_coarse_as=bounds.precision_of(max(regrets.values())) if regrets else "",
        configuration=triage.configuration.name,
        num_requests=triage.num_requests,
        num_tokens=triage.num_tokens,
        num_scenes=triage.num_scenes,
        seconds=seconds,
        failure=failure_file(trial, decision.scene, output) if decision.scene else None,
    )


def _engine_lines(found: EngineTriage) -> Iterator[str]:
    yield f"{found.engine}: {found.verdict or 'no answer'}"
    for each in found.models:
        yield f"  {each.model} ({each.dtype}): {each.verdict}: {each.why}"
        yield from (f"    {text}" for text in (*_facts(each), *each.evidence))
        if each.failure:
            yield f"    batchproof replay {each.failure}"
    yield from (f"  {text}" for text in found.refusals)


def _facts(found: ModelTriage) -> Iterator[str]:
    if found.num_requests:
        yield (
            f"{found.num_requests:,} answers, {found.num_tokens:,} tokens, {found.num_scenes} scenes, "
            f"{found.seconds:.0f} s"
        )
    if found.worst_alone is not None and found.worst_batched is not None and found.error_unit:
        yield (
            f"largest margin of a token not taken: {found.worst_alone:.3g} E alone, "
            f"{found.worst_batched:.3g} E in batches (E {found.error_unit:.2g}); as coarse as "
            f"{found.as_coarse_as}"
        )


def _page(record: TriageRecord) -> str:
    lines = ["# Triage", "", *record.made.lines(), f"* seed {record.seed}", ""]
    for engine in record.engines:
        lines += ["```", *_engine_lines(engine), "```", ""]
    return "\n".join(lines)
