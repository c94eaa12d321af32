"""The configuration file becomes arguments of pytest, which reads and checks both. A flag that was
typed wins over the file's key.

A key is the long name of an option, with underscores. The file is read where the suite or an option
awakens the plugin, and in the process that was started: its workers are given values.
"""

import difflib
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain

import pytest

from batchproof.cli.config_file import DEST, ConfigFile, select_config
from batchproof.cli.option_names import EXPECTED, FLAGS, JOBS, OPTIONS, RULE_OF_JOBS, SERVED, SWITCHES
from batchproof.errors import UsageError
from batchproof.plugin import bench_options

OF_BENCHMARKS = frozenset(each.replace("-", "_") for each in bench_options.OPTIONS)
IN_BENCHMARKS = OF_BENCHMARKS | {"engine", "device"}  # the others are about the suite


# The file, and its keys that have told this run something; empty if there is none.
CONFIGURED = pytest.StashKey[str]()


def configure(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Puts the arguments of the configuration before those typed. Raises `pytest.UsageError`, also for
    an option that nobody knows, if it is like one of ours."""
    for flag in (each.partition("=")[0] for each in parser.parse_known_and_unknown_args(args)[1]):
        if flag.startswith("--") and (close := difflib.get_close_matches(flag, OPTIONS)):
            raise pytest.UsageError(f"{flag} is no option; do you mean {' or '.join(close)}?")
    args[:] = [*_of_file(config, parser, args), *args]


def configure_late(config: pytest.Config) -> None:
    """Sets the options of the configuration where a conftest.py has registered the plugin, which was
    asked for none before all was parsed. Raises `pytest.UsageError`."""
    if CONFIGURED not in config.stash:
        parser = config._parser
        words = _of_file(config, parser, config.invocation_params.args)
        parser.parse_known_and_unknown_args(words, config.option)


def _of_file(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> list[str]:
    config.stash[CONFIGURED] = ""
    typed = Namespace(**dict.fromkeys(map(_dest, FLAGS.values())))  # None: not typed
    parser.parse_known_and_unknown_args([*args], typed)
    try:
        file = select_config(getattr(typed, DEST))
        if file is None:
            return []
        words = dict(_arguments(file, parser, typed))
        keys = ", ".join(words) or "no key of this run"
        config.stash[CONFIGURED] = f"{file.path}: {keys}"
        return [*chain.from_iterable(words.values())]
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _arguments(
    file: ConfigFile, parser: pytest.Parser, typed: Namespace
) -> Iterator[tuple[str, list[str]]]:
    """Yields the keys of the run that no flag overrides, each with its arguments."""
    is_benchmark = getattr(typed, "benchmark_only", False)
    for key in filter(FLAGS.__contains__, file.values):
        flag = FLAGS[key]
        is_of_run = key in IN_BENCHMARKS if is_benchmark else key not in OF_BENCHMARKS
        is_of_run &= key != SERVED or bool(file.served_by(typed.engine or ()))
        if is_of_run and getattr(typed, _dest(flag)) is None:
            yield key, _words(file, key, parser)
    if not is_benchmark and EXPECTED in file.values and typed.xfails is None:
        yield EXPECTED, [f"--xfails={file.path}"]


def _words(file: ConfigFile, key: str, parser: pytest.Parser) -> list[str]:
    """Returns the arguments that a key stands for. Raises `CaseError` for a list where the option takes
    one value."""
    flag, value = FLAGS[key], file.values[key]
    if flag in SWITCHES:
        return [flag if value.boolean() else f"--no-{flag[2:]}"]
    texts, is_file = value.texts(), flag in _files(parser)
    texts = [file.from_here(each) for each in texts] if is_file else file.named_from_here(texts)
    if key == "jobs" and not all(re.fullmatch(JOBS, each) for each in texts):
        raise value.wrong(RULE_OF_JOBS)
    words = [f"{flag}={each}" for each in texts]
    if value.kind == "seq":
        parsed, _ = parser.parse_known_and_unknown_args(words)
        if not isinstance(getattr(parsed, _dest(flag), None), list):
            raise value.wrong("one value")
    return words


def _files(parser: pytest.Parser) -> set[str]:
    """Returns the options that take a file or a folder."""
    groups = (parser.getgroup(name) for name in ("batchproof", "batchproof-benchmarks"))
    options = [option for group in groups for option in group.options]
    return {each.names()[0] for each in options if each.attrs().get("metavar") in ("FILE", "DIR")}


def _dest(flag: str) -> str:
    return flag[2:].replace("-", "_")
