"""`batchproof judge requirements`: which sets there are, and what they require."""

import argparse
import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime

import pytest

from batchproof import places
from batchproof.cli.option_names import NO_CONFIG
from batchproof.errors import UsageError
from batchproof.places import SUITE
from batchproof.plugin.items import is_required, requirements_of
from batchproof.records.texts import header, line
from batchproof.requirements import sets
from batchproof.requirements.promises import Promise
from batchproof.requirements.sets import CURRENT, Requirements, RequirementSet

ANY_ENGINE = "reference"  # which tests there are depends on no engine
COLLECTING = (  # as `batchproof test` does
    *("--collect-only", "-q", "-p", "batchproof.plugin", "-p", "no:cacheprovider", "--assert=plain"),
    *("-c", os.devnull, f"--confcutdir={SUITE}", "--import-mode=importlib"),
    *("--benchmark-storage=file://.", NO_CONFIG),
)
SET_NAME = re.compile(r"\d{4}\.(0[1-9]|1[0-2])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    commands.add_parser("list", help="the sets: date, number of requirements, digest")
    show = commands.add_parser("show", help="the requirements of a set")
    show.add_argument("set", metavar="SET", help="a name, or current: what the suite holds now")
    freeze = commands.add_parser("freeze", help="write what the suite holds now as a set")
    freeze.add_argument("set", metavar="SET", help="a name such as 2027.06")
    freeze.add_argument("--date", default=f"{datetime.now(UTC):%Y-%m-%d}", help="(default: today)")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0. Raises `UsageError`."""
    if arguments.what == "list":
        print("\n".join(_list()))
    elif arguments.what == "show":
        print("\n".join(_show(_loaded(arguments.set))))
    else:
        if places.CHECKOUT is None or not SET_NAME.fullmatch(arguments.set):
            raise UsageError(
                f"{arguments.set!r} cannot be frozen: that is done in a checkout, and a set is named "
                "by year and month, such as 2027.06"
            )
        frozen = sets.set_of(arguments.set, arguments.date, collected())
        path = sets.freeze(frozen)
        print(
            f'{path}: {len(frozen.by_id)} requirements\nRELEASED: "{frozen.name}": "{frozen.digest}",'
        )
    return 0


class _Collector:
    """The plugin that keeps what the suite requires."""

    def __init__(self) -> None:
        self.found: list[Requirements] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keeps the requirements, in the order of their files."""
        required = [item for item in session.items if is_required(item)]
        self.found = [requirements_of(item) for item in sorted(required, key=lambda each: each.nodeid)]


def collected(*plugins: object) -> list[Requirements]:
    """Returns what the suite requires now of an engine that can do everything, an id each. `plugins`
    are further ones of pytest."""
    collector = _Collector()
    with io.StringIO() as output, redirect_stdout(output):
        arguments = [str(SUITE), *COLLECTING, f"--engine={ANY_ENGINE}"]
        status = pytest.main(arguments, plugins=[collector, *plugins])
        said = output.getvalue()
    if status != pytest.ExitCode.OK:
        raise UsageError(f"the suite cannot be collected: {said}")
    return collector.found


def _loaded(name: str) -> RequirementSet:
    return sets.set_of(CURRENT, "", collected()) if name == CURRENT else sets.load(name)


def _list() -> Iterator[str]:
    yield from header("set", "released", "requirements", "digest")
    for each in map(sets.load, sets.names()):
        is_released = each.name in sets.RELEASED
        date = each.date if is_released else "a draft"
        yield line(each.name, date, str(len(each.by_id)), each.digest)


def _show(shown: RequirementSet) -> Iterator[str]:
    for each in Promise:
        ids = [(one, name) for one in shown.requirements if one.promise == each.id for name in one.ids]
        if ids:
            yield f"{each}: {each.sentence}; {len(ids)} requirements"
            yield from (f"  {one.grade}  {name}{_needed(one)}" for one, name in ids)


def _needed(requirements: Requirements) -> str:
    return f"  needs {', '.join(requirements.needs)}" if requirements.needs else ""
