"""Expected failures: `[[expected_failures]]` in the configuration or in the file that `--xfails` names.
Each is run all the same, and is strict: one that passes fails the run, so that no entry outlives the
bug it stands for.

A test is named as the line `again:` of a failure report prints it; or by its requirement id, which has
no engine: then the entry is about the engines that the file names, or about all if it names none.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from batchproof.cli.config_file import read
from batchproof.cli.option_names import EXPECTED, KEYS
from batchproof.errors import UsageError
from batchproof.places import SUITE
from batchproof.plugin import problems
from batchproof.plugin.items import ANY_MODEL, INSTALLED_SUITE, name_of, requirement_id, trial_of

REQUIRED = ("test", "reason", "link")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """An entry of the list: a test that is expected to fail, and why."""

    test_id: str
    reason: str
    place: str  # file:line
    engines: list[str]  # of the file


KNOWN = pytest.StashKey[KnownFailure]()


def read_known_failures(name: str | None) -> list[KnownFailure]:
    """Returns the known failures; none if no file is named. Raises `CaseError` naming the file and the
    line that is wrong."""
    if name is None:
        return []
    if not Path(name).is_file():
        raise UsageError(f"--xfails {name!r} is no file")
    file = read(Path(name))
    if EXPECTED not in file.values:
        return []
    rule = f"a list of tables: begin each with [[{EXPECTED}]]"
    found: dict[str, KnownFailure] = {}
    for entry in file.values[EXPECTED].items("an expected failure", rule):
        given = entry.pairs(rule)
        for key in given.keys() & KEYS:
            words = f"{key} is a key of the file: it must stand above the first [[{EXPECTED}]]"
            raise given[key].place.error(words)
        entry.mapping(REQUIRED, REQUIRED)
        test_id, reason, link = (given[key].words() for key in REQUIRED)
        place = given["test"].place
        known = KnownFailure(test_id, f"{reason} ({link})", str(place), file.engines)
        first = found.setdefault(test_id, known)
        if first is not known:
            raise place.error(f"{test_id!r} is listed already, in {first.place}")
    return list(found.values())


class KnownFailures:
    """The plugin that marks the listed tests before -k and -m deselect any of them."""

    def __init__(self, listed: Sequence[KnownFailure]) -> None:
        self._listed = listed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if wrong := list(self._mark(config, items)):
            problems.report(config, "\n".join(wrong))

    def _mark(self, config: pytest.Config, items: Sequence[pytest.Item]) -> Iterator[str]:
        """Marks the listed tests; yields a sentence for each entry that wrongly names none."""
        by_id: dict[str, list[pytest.Item]] = {}
        for item in items:
            for name in _ids(item):
                by_id.setdefault(name, []).append(item)
        for known in self._listed:
            place, test_id = known.place, known.test_id
            if test_id not in by_id and (what := _missing(known, config, by_id)):
                yield f"{place}: {what}"
            for item in by_id.get(test_id, ()):
                trial = trial_of(item)
                if trial is None:
                    yield f"{place}: {test_id!r} is no conformance test, so must pass"
                elif KNOWN in item.stash:
                    yield f"{place}: {test_id!r} is listed already, in {item.stash[KNOWN].place}"
                elif test_id == name_of(item) or not known.engines or trial[0] in known.engines:
                    item.stash[KNOWN] = known
                    item.add_marker(pytest.mark.xfail(reason=known.reason, strict=True))


def _missing(
    known: KnownFailure, config: pytest.Config, by_id: Mapping[str, Sequence[pytest.Item]]
) -> str | None:
    """Returns what is wrong with an id that matches no collected test, or None if it may belong to
    another run: if its file, the test within it, or its engine, model or parameters were not asked for.
    """
    file, _, _ = known.test_id.partition("::")
    same_file = [each for each in by_id if each.startswith(f"{file}::")]
    is_there = (SUITE / f"{file}.py").is_file() or (config.rootpath / file).is_file()
    if not (same_file or is_there or file.startswith(INSTALLED_SUITE)):
        what = f"there is no file or module {file!r} for the test id {known.test_id!r}"
        return f"{what}{_hint(known, by_id)}"
    is_part = config.getoption("lf", False) or any("::" in argument for argument in config.args)
    function = known.test_id.partition("[")[0]
    of_function = [each for each in same_file if each.partition("[")[0] == function]
    are_any = {each.partition("[")[2].startswith(ANY_MODEL) for each in of_function}
    is_any = known.test_id.partition("[")[2].startswith(ANY_MODEL)
    is_other_kind = not file.endswith(".py") and are_any == {not is_any}  # `any`, or a model
    if (of_function and not is_other_kind) or is_part or not same_file:
        return None
    return f"no test has the id {known.test_id!r}{_hint(known, same_file)}"


def _hint(known: KnownFailure, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(known.test_id, list(choices), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _ids(item: pytest.Item) -> set[str]:
    return {name_of(item), *([requirement_id(item)] if trial_of(item) else [])}


def known_failure_of(item: pytest.Item) -> KnownFailure | None:
    """Returns the line of the list that names the test, or None."""
    return item.stash.get(KNOWN, None)


def is_known(report: pytest.TestReport) -> bool:
    """Returns whether the report is of a failure that the list names."""
    return hasattr(report, "wasxfail")


def forget_known(report: pytest.TestReport) -> None:
    """Marks the failure as unexpected: it is another one than the list names."""
    if is_known(report):
        del report.wasxfail
        report.outcome = "failed"
