"""The configuration file becomes arguments of pytest: one code reads and checks both. A flag that was
typed wins over the file's key.

A key is the long name of an option, with underscores. The file is read where the suite or an option
awakens the plugin, and in the process that was started: its workers are given values.
"""

import os
import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from batchproof.cli.config_file import DEST, ConfigFile, require_no_engine, select_config
from batchproof.cli.option_names import EXPECTED, FLAGS, SERVED
from batchproof.errors import UsageError
from batchproof.plugin import bench_options
from batchproof.records.provenance import TYPED
from batchproof.validation.source_lines import SourceLine

KEY_OF = {flag: key for key, flag in FLAGS.items()}
OF_BENCHMARKS = frozenset(each.replace("-", "_") for each in bench_options.OPTIONS)
IN_BENCHMARKS = OF_BENCHMARKS | {"engine", "device"}  # the others are about the suite
REASON = re.compile(r"error: argument [^:]*: (.*)")  # of argparse


@dataclass(frozen=True)
class Configured:
    """What a file has told this run: the places of its keys, by their flags if they have one."""

    file: str
    places: dict[str, SourceLine] = field(default_factory=dict)

    def __str__(self) -> str:
        keys = ", ".join(KEY_OF.get(flag, flag) for flag in self.places)
        return f"{self.file}: {keys or 'no key of this run'}"


CONFIGURED = pytest.StashKey[Configured]()


def configure(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Puts the arguments of the configuration before those typed. Raises `pytest.UsageError`."""
    typed = Namespace(**dict.fromkeys(map(_dest, FLAGS.values())))  # None: not typed
    parser.parse_known_and_unknown_args(args, typed)
    try:
        if TYPED in os.environ:  # by a command, which names the folder of tests
            require_no_engine(typed.file_or_dir[1:])
        file = select_config(getattr(typed, DEST))
        if file is not None:
            config.stash[CONFIGURED] = configured = Configured(file.table.place().path)
            args[:] = [*_arguments(file, configured, parser, typed), *args]
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def located(config: pytest.Config, problem: str) -> str:
    """Returns the problem; with place and key instead of the flag if the value is that of the file."""
    configured = config.stash.get(CONFIGURED, None)
    flag = re.match(r"--[a-z-]+", problem)
    if configured is None or flag is None or flag[0] not in configured.places:
        return problem
    return str(configured.places[flag[0]].error(KEY_OF[flag[0]] + problem[flag.end() :]))


def _arguments(
    file: ConfigFile, configured: Configured, parser: pytest.Parser, typed: Namespace
) -> Iterator[str]:
    table, is_benchmark = file.table, getattr(typed, "benchmark_only", False)
    for key in filter(FLAGS.__contains__, table.values):
        flag = FLAGS[key]
        is_of_run = key in IN_BENCHMARKS if is_benchmark else key not in OF_BENCHMARKS
        is_of_run &= key != SERVED or bool(file.served_by(typed.engine or ()))
        if is_of_run and getattr(typed, _dest(flag)) is None:
            configured.places[flag] = table.place(key)
            yield from _words(file, key, parser)
    if is_benchmark:
        return
    if EXPECTED in table.values and typed.xfails is None:
        configured.places[EXPECTED] = table.place(EXPECTED)
        yield f"--xfails={configured.file}"


def _words(file: ConfigFile, key: str, parser: pytest.Parser) -> list[str]:
    """Returns the arguments that a key stands for. Raises `CaseError` for what the option refuses."""
    table, flag, value = file.table, FLAGS[key], file.table.values[key]
    if _is_switch(parser, flag):
        if not isinstance(value, bool):
            raise table.wrong(key, "true or false")
        return [flag if value else f"--no-{flag[2:]}"]
    texts = table.texts(key)
    is_file = flag in _files(parser)
    texts = [file.from_here(each) for each in texts] if is_file else file.named_from_here(texts)
    words = [f"{flag}={each}" for each in texts]
    try:
        parsed, unknown = parser.parse_known_and_unknown_args(words)
    except pytest.UsageError as error:
        if key == "jobs":  # argparse has no words for its rule
            raise table.wrong(key, "a whole number, 'auto' or 'logical'") from None
        reason = REASON.search(str(error))
        problem = f": {reason[1]}" if reason else str(error).removeprefix(flag)
        raise table.place(key).error(f"{key}{problem}") from None
    if unknown:
        raise table.place(key).error(f"{key} has no effect: the plugin that has {flag} is switched off")
    if isinstance(value, list) and not isinstance(getattr(parsed, _dest(flag)), list):
        raise table.wrong(key, "one value")
    return words


def _is_switch(parser: pytest.Parser, flag: str) -> bool:
    try:
        return not parser.parse_known_and_unknown_args([flag])[1]
    except pytest.UsageError:  # it takes a value
        return False


def _files(parser: pytest.Parser) -> set[str]:
    """Returns the options that take a file or a folder."""
    groups = (parser.getgroup(name) for name in ("batchproof", "batchproof-benchmarks"))
    options = [option for group in groups for option in group.options]
    return {each.names()[0] for each in options if each.attrs().get("metavar") in ("FILE", "DIR")}


def _dest(flag: str) -> str:
    return flag[2:].replace("-", "_")
