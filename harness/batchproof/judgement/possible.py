"""What of a matrix can be had on this machine, found out before its first cell is judged: a mistake in
a later one would be seen after minutes."""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from batchproof.errors import ConfigError, EngineHang, UsageError
from batchproof.judgement.axes import MODEL, SUITE_OPTION, Axes, base_of, beside_of, cell_of
from batchproof.judgement.cells import CellTask
from batchproof.judgement.suite_session import split_options
from batchproof.models.catalogue import resolve_device, resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.oracle.precision import KV_CACHES
from batchproof.records.matrix import Settings
from batchproof.run.devices import exact_device
from batchproof.run.laboratory import Laboratory, first_contact
from batchproof.run.registry import resolve_engine
from batchproof.run.time_limit import contained
from batchproof.validation.values import one_of
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

DEVICE = "--device"
# Options of the suite whose values are known.
CHOICES = {"--dtype": DTYPES, "--compute-dtype": DTYPES, "--kv-cache-dtype": KV_CACHES}


def require_options(arguments: argparse.Namespace, axes: Axes) -> None:
    """Raises `UsageError` for a wrong option of the engine or the suite, and for an option that
    `--pytest` gives as well. A model that it gives is that of other axes."""
    given = {each.partition("=")[0] for each in split_options(arguments.pytest)}
    for name in axes:
        for value in axes[name]:
            cell = cell_of(arguments.engine, axes, {**base_of(axes), name: value})
            resolve_engine(cell.engine)
            if why := missing_device(axes, name, value):
                raise UsageError(
                    f"--axis {name!r}: {value} cannot be judged here: {why}; --axis names others"
                )
            for option in cell.options:
                written, _, wanted = option.partition("=")
                if written in CHOICES:
                    one_of(f"--axis {name}: {written}", wanted, CHOICES[written])
                if written in given and written != MODEL:
                    raise UsageError(f"{written} is set by --axis {name!r} and by --pytest: choose one")


def missing_device(axes: Axes, name: str, value: str, above: tuple[tuple[str, str], ...] = ()) -> str:
    """Returns which device is not here that a value of an axis is for, or one that it stands beside; an
    empty text if all are. `above`: values that need this one."""
    options, above = axes[name][value], (*above, (name, value))
    if DEVICE in options:
        try:
            resolve_device(str(options[DEVICE]))
        except UsageError as error:
            return str(error)
    beside = [each for each in beside_of(options).items() if each[1] in axes.get(each[0], ())]
    return next(filter(None, (missing_device(axes, *b, above) for b in beside if b not in above)), "")


def available(axes: Axes) -> tuple[Axes, tuple[str, ...]]:
    """Returns the axes without the values that this machine cannot have, and a sentence for each of
    those."""
    missing = {
        (name, value): missing_device(axes, name, value) for name in axes for value in axes[name]
    }
    left = {
        name: {value: options for value, options in values.items() if not missing[name, value]}
        for name, values in axes.items()
    }
    sentences = (f"{name}={value}: {why}" for (name, value), why in missing.items() if why)
    return {name: values for name, values in left.items() if values}, tuple(sentences)


def require_values(
    arguments: argparse.Namespace, axes: Axes, declared: Axes, wanted: Sequence[Settings]
) -> None:
    """Builds the engine with each value of its options that it does not declare itself. Raises
    `UsageError` for one that none of the wanted settings has, or that it refuses in all that do."""
    tried = [
        (name, value)
        for name in axes
        if not name.startswith(SUITE_OPTION) and not {*axes[name]} <= {*declared.get(name, ())}
        for value in axes[name]
    ]
    if not tried:
        return
    # A process of its own takes along what engines leave behind: servers, memory of a GPU.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for name, value in tried:
            cells = [cell_of(arguments.engine, axes, each) for each in wanted if each[name] == value]
            if not cells:
                raise UsageError(f"--axis {name!r}: {value} may stand beside no value of the others")
            tasks = (CellTask(each, "", arguments.pytest, 1, ()).session(Path()) for each in cells)
            try:
                refusals = (pool.submit(refusal_of, t.engine, t.options).result() for t in tasks)
                if all(why := each for each in refusals):
                    raise UsageError(f"--axis {name!r}: {value} is refused: {why}")
            except BrokenProcessPool:
                return  # an engine has ended the process: the suite says more of it


def refusal_of(engine: str, options: Sequence[str]) -> str:
    """Returns why the engine refuses its options when it is built under these of the suite; an empty
    text if it does not, or if anything else is wrong with it, which the suite reports."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option, usual in {DEVICE: "auto", "--dtype": "float32", MODEL: "all"}.items():
        parser.add_argument(option, default=usual)
    given, _ = parser.parse_known_args(options)
    model = next(iter(EMBEDDED)) if given.model == "all" else given.model
    try:
        with contained(), exact_device(given.device) as device:
            lab = Laboratory(device, resolve_dtype(given.dtype), DEFAULT_TIME_LIMIT_S)
            first_contact(lab, resolve_engine(engine), lab.subject(model))
    except (UsageError, ConfigError) as error:
        return str(error)
    except (Exception, EngineHang):
        pass
    return ""
