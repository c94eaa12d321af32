"""The common options of campaigns, and the errors for wrong values."""

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.records.provenance import num_cores
from batchproof.validation.values import near

DEFAULT_OUTPUT = ROOT / "results"


def add_common(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    meaning = "worker processes (default: one a core, here %(default)s)"
    parser.add_argument("--jobs", type=positive, default=num_cores(), metavar="N", help=meaning)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        metavar="DIR",
        help="where the JSON and the Markdown go (default: %(default)s)",
    )


def add_engines(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Adds the names of engines, any number of them."""
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=meaning)


def add_repeatable(parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    parser.add_argument(flag, action="append", metavar=metavar, help=meaning)


def add_count(parser: argparse.ArgumentParser, flag: str, default: int, meaning: str) -> None:
    """Adds a whole number of at least 1. The help says the default."""
    help_text = f"{meaning} (default: %(default)s)"
    parser.add_argument(flag, type=positive, default=default, metavar="N", help=help_text)


def add_seed(parser: argparse.ArgumentParser, default: int = 0) -> None:
    meaning = "of everything drawn (default: %(default)s)"
    parser.add_argument("--seed", type=whole, default=default, metavar="S", help=meaning)


def add_time_limit(parser: argparse.ArgumentParser, default: float, meaning: str) -> None:
    """Adds `--time-limit`, in seconds. The help says the default."""
    help_text = f"{meaning} (default: %(default)g)"
    parser.add_argument("--time-limit", type=seconds, default=default, metavar="S", help=help_text)


def whole(value: str, least: int = 0) -> int:
    """Returns a whole number of at least `least`. Raises `argparse.ArgumentTypeError`."""
    if not _is_whole(value) or int(value) < least:
        raise argparse.ArgumentTypeError(f"{value!r} must be a whole number of at least {least}")
    return int(value)


positive = partial(whole, least=1)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def seconds(value: str) -> float:
    """Returns seconds above 0 and up to 3600. Raises `argparse.ArgumentTypeError`."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(
            f"{value!r} must be a number of seconds, above 0 and up to 3600"
        )
    return number


def seeds(value: str) -> tuple[int, ...]:
    """Returns different whole numbers from a list with commas. Raises `argparse.ArgumentTypeError`."""
    parts = value.split(",")
    if not all(map(_is_whole, parts)) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"{value!r} must be different whole numbers, such as 1,2,3")
    return tuple(int(part) for part in parts)


def select_names(
    names: Sequence[str] | None, known: Iterable[str], what: str, lister: str = ""
) -> list[str]:
    """Returns the names, or all known ones if none is given. Raises `UsageError` for an unknown name,
    with those near it; `lister` says what lists all of them."""
    choices = list(known)
    for name in names or ():
        if name not in choices:
            raise UsageError(f"{name!r} is no {what}; {near(name, choices, lister)}")
    return list(dict.fromkeys(names or choices))


def writable(directory: Path, name: str = "--output") -> Path:
    """Returns the directory, created if need be. Raises `UsageError` before the work, not after it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{name} '{directory}' cannot be written: {error.strerror}") from error
    return directory
