"""What of a matrix can be had on this machine, found out before its first cell is judged: a mistake in
a later one would be seen after minutes."""

import argparse

from batchproof.errors import UsageError
from batchproof.judgement.axes import MODEL, Axes, Value, base_of, cell_of, with_needed
from batchproof.judgement.suite_session import split_options
from batchproof.models.catalogue import may_be_checkpoint, resolve_device
from batchproof.models.embedded import DTYPES, KNOWN
from batchproof.models.shapes import SHAPES
from batchproof.oracle.precision import KV_CACHES
from batchproof.run.registry import resolve_engine
from batchproof.validation.values import one_of

# Options of the suite whose values are known.
CHOICES = {"--dtype": DTYPES, "--compute-dtype": DTYPES, "--kv-cache-dtype": KV_CACHES}


def require_options(arguments: argparse.Namespace, axes: Axes) -> None:
    """Raises `UsageError` for a wrong option of the engine or the suite, and for an option that
    `--pytest` gives as well."""
    given = {each.partition("=")[0] for each in split_options(arguments.pytest)}
    for name, values in axes.items():
        for value, each in values.items():
            cell = cell_of(arguments.engine, axes, {**base_of(axes), name: value})
            resolve_engine(cell.engine)
            if why := missing_device(each):
                raise UsageError(
                    f"--axis {name!r}: {value} cannot be judged here: {why}; --axis names others"
                )
            for option in cell.options:
                written, _, wanted = option.partition("=")
                if written == MODEL and not may_be_checkpoint(wanted):
                    one_of(f"--axis {name}: {written}", wanted, (*KNOWN, *SHAPES))
                if written in CHOICES:
                    one_of(f"--axis {name}: {written}", wanted, CHOICES[written])
                if written in given:
                    raise UsageError(f"{written} is set by --axis {name!r} and by --pytest: choose one")


def missing_device(value: Value) -> str:
    """Returns which device is not here that a value of an axis is for; an empty text if it is."""
    try:
        resolve_device(value.options.get("--device", "cpu"))
    except UsageError as error:
        return str(error)
    return ""


def available(axes: Axes) -> tuple[Axes, tuple[str, ...]]:
    """Returns the axes without the values that this machine cannot have, and a sentence for each of
    those."""
    left: dict[str, dict[str, Value]] = {}
    sentences = []
    for name, values in axes.items():
        for value, each in values.items():
            if why := missing_device(with_needed(each, axes)):
                sentences.append(f"{name}={value}: {why}")
            else:
                left.setdefault(name, {})[value] = each
    return left, tuple(sentences)
