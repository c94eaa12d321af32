"""`batchproof triage ENGINE...`: corruption, rounding, a configuration, or nothing found.

Exit status: 1 if an engine is CORRUPTION, else 3 if one is CONFIG, else 2 if one answers nothing, else
0: all are CLEAN or ROUNDING. 2 for wrong input, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from batchproof import places
from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.result_files import write_result
from batchproof.errors import UsageError
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.provenance import made_now
from batchproof.records.triage import (
    CLEAN,
    CONFIG,
    CONFUSION,
    CORRUPTION,
    ROUNDING,
    TRIAGE,
    EngineTriage,
    TriageRecord,
    Verdict,
)
from batchproof.run.invariance.serving import num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import has_own_process, parse_options, resolve_engine, server_engine
from batchproof.triage.blinded import NUM_FAULTY, NUM_HONEST
from batchproof.triage.confusion import confusion
from batchproof.triage.engine_triage import triage_engine
from batchproof.triage.triage_page import confusion_page, engine_lines, triage_page
from batchproof_lab.shared_laboratory import exact_device

DEFAULT_MODELS = ("gpt2-hash", "llama-twins", "mistral-hash", "bamba-hash")
ONE_MODEL = ("llama-twins",)  # of an engine whose server has a single checkpoint
EXIT_CODES = {CLEAN: 0, ROUNDING: 0, CORRUPTION: 1, CONFIG: 3}
UNKNOWN = 2
TIME_LIMIT_S = 300.0
SEED = 0


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
    parser.add_argument(
        "--seed", type=choices.whole, default=SEED, metavar="N", help="of contents (default: 0)"
    )
    parser.add_argument(
        "--time-limit",
        type=choices.seconds,
        default=TIME_LIMIT_S,
        metavar="S",
        help="seconds for an engine (default: 300)",
    )
    parser.add_argument(
        "--confusion",
        action="store_true",
        help="judge triage itself on 100 blinded engines, in a checkout; writes results/triage.*",
    )
    parser.add_argument(
        "--seen", action="store_true", help="with --confusion: on those that the rules were made on"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where record, page and failures go (default: triage/, with --confusion results/)",
    )
    parser.add_argument(
        "--jobs", type=choices.positive, default=1, metavar="N", help="with --confusion"
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns the exit status. Raises `UsageError` for an unknown engine, model, dtype or device."""
    if arguments.confusion and arguments.engines:
        raise UsageError(f"--confusion takes no ENGINE, but {arguments.engines[0]!r} is given")
    if arguments.confusion:
        return _judge_itself(arguments)
    if arguments.seen:
        raise UsageError("--seen goes with --confusion")
    engines = arguments.engines or required_engines(find())
    output = choices.writable(arguments.output or Path("triage"))
    found: list[EngineTriage] = []
    with exact_device(arguments.device) as device, num_threads(torch.get_num_threads()):
        # A call may take the whole time: a slow engine is not corrupt.
        lab = Laboratory(device, resolve_dtype(arguments.dtype), arguments.time_limit)
        texts = [_with_server(each) for each in dict.fromkeys(engines)]
        specs = [resolve_engine(each) for each in texts]
        for spec in specs:
            models = arguments.model or _models_of(spec.name)
            limit, note = arguments.time_limit, partial(print, file=sys.stderr, flush=True)
            found.append(triage_engine(lab, spec, models, limit, arguments.seed, output, note))
            print("\n".join(engine_lines(found[-1])), flush=True)
    record = TriageRecord(made_now(), arguments.seed, tuple(found))
    write_result(TRIAGE, record, triage_page, output, "triage", is_whole=True)
    return _exit_code([each.verdict for each in found])


def _judge_itself(arguments: argparse.Namespace) -> int:
    if places.ROOT != places.CHECKOUT:
        raise UsageError("--confusion judges triage itself: run it in a checkout of Batchproof")
    output = choices.writable(arguments.output or choices.DEFAULT_OUTPUT)
    record = confusion(
        arguments.seed, not arguments.seen, arguments.jobs, arguments.time_limit, output / "journals"
    )
    is_whole = record.is_held_out and len(record.engines) == NUM_FAULTY + NUM_HONEST
    write_result(CONFUSION, record, confusion_page, output, "triage", is_whole)
    num_right = sum(each.is_right for each in record.engines)
    print(f"{num_right} of {len(record.engines)} right")
    return int(num_right < len(record.engines))


def _with_server(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator and "?" not in scheme and scheme not in ("http", "https"):
        raise UsageError(f"{text!r} begins with {scheme}://, but a server is http:// or https://")
    return server_engine(text) if text.startswith(("http://", "https://")) else text


def _models_of(text: str) -> Sequence[str]:
    """Returns the models to ask on: what a server's model is named after, else those of all."""
    served = parse_options(text, text.partition("?")[2]).get("model") if "?" in text else None
    if served is not None and Path(str(served)).name in EMBEDDED:
        return (Path(str(served)).name,)
    if text.startswith("openai"):
        raise UsageError(
            f"the server's model {served!r} is named after none of {', '.join(EMBEDDED)}: name its "
            f"checkpoint with --model"
        )
    return ONE_MODEL if has_own_process(text) else DEFAULT_MODELS


def _exit_code(verdicts: Sequence[Verdict | None]) -> int:
    codes = {UNKNOWN if each is None else EXIT_CODES[each] for each in verdicts}
    return next(code for code in (1, 3, UNKNOWN, 0) if code in codes)
