"""`--xfails FILE`: known failures of an engine. Each is run all the same, and is strict: one that
passes fails the run, so that no line outlives the bug it stands for.

A line reads `test id # reason # link`. A hash between white space separates the parts and may stand
nowhere else. Empty lines and lines that start with a hash are comments. An id is written as the line
`again:` of a failure report prints it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from batchproof.errors import UsageError
from batchproof.plugin import problems
from batchproof.plugin.item_names import INSTALLED_SUITE, name_of

FORM = "test id # reason # link"
SEPARATOR = re.compile(r"\s+#\s+")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One line of the file: a test that is expected to fail, and why."""

    test_id: str
    reason: str
    place: str  # file:line

    @property
    def is_no_more(self) -> str:
        """Returns the message for a known failure that passes."""
        return f"{self.place}: this known failure passes now, so take the line out ({self.reason})"


KNOWN = pytest.StashKey[KnownFailure]()


def read_known_failures(file: str | None) -> list[KnownFailure]:
    """Returns the known failures; none if no file is named.

    Raises `UsageError` naming the file and the line that is wrong.
    """
    if file is None:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--xfails {file!r} cannot be read: {error}") from error
    found: dict[str, KnownFailure] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        known = _parse(line, f"{file}:{number}")
        if known.test_id in found:
            first = found[known.test_id].place
            raise UsageError(f"{known.place}: {known.test_id!r} is listed already, in {first}")
        found[known.test_id] = known
    return list(found.values())


def _parse(line: str, place: str) -> KnownFailure:
    parts = SEPARATOR.split(line.strip())
    if len(parts) != 3 or not all(parts):
        raise UsageError(f"{place}: the line has {len(parts)} parts, but must read {FORM!r}")
    test_id, reason, link = parts
    return KnownFailure(test_id, f"{reason} ({link})", place)


class KnownFailures:
    """The plugin that marks the listed tests before -k and -m deselect any of them."""

    def __init__(self, listed: Sequence[KnownFailure]) -> None:
        self._listed = listed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Marks the listed tests and reports a line that names none."""
        problem = next(self._mark(config, items), None)
        if problem is not None:
            problems.report(config, problem)

    def _mark(self, config: pytest.Config, items: Sequence[pytest.Item]) -> Iterator[str]:
        """Marks the listed tests; yields a sentence for each line that should name a test and names
        none.
        """
        by_id = {name_of(item): item for item in items}
        for known in self._listed:
            item = by_id.get(known.test_id)
            if item is not None and "trial" in getattr(item, "fixturenames", ()):
                item.stash[KNOWN] = known
                item.add_marker(pytest.mark.xfail(reason=known.reason, strict=True))
            elif item is not None:
                yield f"{known.place}: {known.test_id!r} is no conformance test, so must pass"
            elif what := _missing(known, config, items):
                yield f"{known.place}: {what}"


def _missing(known: KnownFailure, config: pytest.Config, items: Sequence[pytest.Item]) -> str | None:
    """Returns what is wrong with an id that matches no collected test, or None if it may belong to
    another run.

    That is so if its file, its test within the file, or its engine and model were not asked for.
    """
    file, _, _ = known.test_id.partition("::")
    if not (file.startswith(INSTALLED_SUITE) or (config.rootpath / file).is_file()):
        return f"there is no file {file!r} for the test id {known.test_id!r}"
    named = {name_of(item): item for item in items}
    same_file = {name: item for name, item in named.items() if name.startswith(f"{file}::")}
    is_part = config.getoption("lf", False) or any("::" in argument for argument in config.args)
    if not same_file or is_part:
        return None
    function, _, parameters = known.test_id.partition("[")
    pairs = {_pair(item) for name, item in same_file.items() if name.startswith(f"{function}[")}
    if pairs and not any(pair in parameters for pair in pairs):
        return None
    close = difflib.get_close_matches(known.test_id, same_file, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no test has the id {known.test_id!r}{hint}"


def _pair(item: pytest.Item) -> str:
    """Returns engine and model of a test, as its id holds them."""
    spec, model_name = item.callspec.params["trial"]  # type: ignore[attr-defined]
    return f"{spec.name}-{model_name}"


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
