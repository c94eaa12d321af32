"""`python -m batchproof replay FAILURE.json`: checks whether the failure still occurs.

Exit code 1: reproduced, the same promise is broken; 0: gone; 2: undecided, with the reason.
"""

import argparse
from pathlib import Path

import torch

from batchproof.errors import BatchproofError, EngineHang, UsageError
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import EMBEDDED, KNOWN
from batchproof.oracle.precision import resolve_precision
from batchproof.replay.judge import ReplayResult, replayed
from batchproof.replay.record import FailureFile, read_failure
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.engine_names import FORMS
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial

WORDS = {
    ReplayResult.REPRODUCED: "REPRODUCED",
    ReplayResult.GONE: "gone",
    ReplayResult.UNKNOWN: "cannot tell",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("failure", metavar="FAILURE.json", help="written by `pytest --repro`")
    parser.add_argument("--engine", metavar="ENGINE", help=f"another engine: {FORMS}")
    parser.add_argument("--model", metavar="MODEL", help="where the model lies now")


def run(arguments: argparse.Namespace) -> int:
    """Prints one sentence and returns the exit code. Raises `UsageError` if nothing can be run."""
    file = read_failure(Path(arguments.failure))
    engine, known = arguments.engine or file.failure.subject.engine, file.failure.subject.model
    model = arguments.model or known
    if model != known and {model, known} & KNOWN.keys():
        raise UsageError(
            f"--model {model!r}: the failure is of {known!r}; give the place of its weights"
        )
    # As in the suite: the embedded models are too small to share out.
    threads = 1 if model in EMBEDDED else torch.get_num_threads()
    with exact_device(file.failure.subject.device) as device, num_threads(threads):
        outcome, words = replayed(_trial(file, engine, model, device), file.failure)
    if outcome is ReplayResult.GONE and file.is_shown_again is False:
        outcome = ReplayResult.UNKNOWN
        words = f"one engine alone did not show it when the file was written either; run {file.test}"
    print(f"{WORDS[outcome]}: {words}")
    return int(outcome)


def _trial(file: FailureFile, engine: str, model: str, device: torch.device) -> Trial:
    """Returns the trial that the file describes. Raises `UsageError` if engine or model are missing."""
    precision = resolve_precision(file.compute_dtype, file.kv_cache_dtype)
    dtype = resolve_dtype(file.failure.subject.dtype)
    lab = Laboratory(device, dtype, file.time_limit_s, precision)
    spec = resolve_engine(engine)
    oracle = lab.oracle(model)
    try:
        return Trial(lab, spec, oracle, file.failure.promise)
    except BatchproofError:
        raise
    except (Exception, SystemExit, EngineHang) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"engine {engine!r} cannot be built: {what}") from error
