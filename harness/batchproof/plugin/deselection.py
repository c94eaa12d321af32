"""Which collected tests are run: not those of the other kind of run, not those that a journal holds,
and with `--requirement` only the requirements named; and in which order. Counts what is left out, also
by -k, -m, --deselect and --lf.

With workers it is they who deselect; each passes its count to the controller when it ends.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchproof.models.embedded import QUICKEST_MODEL
from batchproof.places import SUITE
from batchproof.plugin import problems
from batchproof.plugin.items import INSTALLED_SUITE, is_conformance_test, requirement_id
from batchproof.validation.values import near

ONE = "--requirement"
HELP = "run this requirement alone, repeatable: module::function[model-...]"
KEY = "batchproof_deselected"  # in a worker's output


class Deselection:
    """The plugin, in all processes. `finished`: node ids of the tests that a journal holds."""

    def __init__(self, config: pytest.Config, finished: Collection[str]) -> None:
        self._config = config
        self._finished = frozenset(finished)
        self._names: set[str] = set()  # deselected conformance tests

    def num_without(self, finished: Collection[str]) -> int:
        """Returns how many tests were deselected, except for those that are finished."""
        return len(self._names.difference(finished))

    @property
    def is_uncounted(self) -> bool:
        """Returns whether tests may be left out that were never collected."""
        return bool(self._config.getoption("lf", False)) or any(map(_is_part, self._config.args))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects the tests that this run is not about, and lets those come first that catch most."""
        wants_benchmarks = bool(config.getoption("--benchmark-only", default=False))
        required = self._required(items)

        def is_kept(item: pytest.Item) -> bool:
            is_benchmark = "benchmark" in getattr(item, "fixturenames", ())
            is_open = item.nodeid not in self._finished and (required is None or item in required)
            return is_benchmark == wants_benchmarks and is_open

        if others := [item for item in items if not is_kept(item)]:
            config.hook.pytest_deselected(items=others)
            items[:] = filter(is_kept, items)
        items.sort(key=_rank)

    def _required(self, items: Sequence[pytest.Item]) -> set[pytest.Item] | None:
        """Returns the tests of the requirements named; None if none is named."""
        asked = self._config.getoption(ONE)
        by_id: dict[str, list[pytest.Item]] = {}
        for item in filter(is_conformance_test, items) if asked else ():
            by_id.setdefault(requirement_id(item), []).append(item)
        for each in asked:
            if each not in by_id:
                hint = near(each, by_id, "`--collect-only`")
                problems.report(self._config, f"{ONE} {each!r} is none of this run; {hint}")
        found = {item for each in asked for item in by_id.get(each, ())}
        return found if asked else None

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Collects what is deselected, but benchmarks and tests of other things."""
        self._names |= {item.nodeid for item in items if is_conformance_test(item)}

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[KEY] = sorted(self._names)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._names.update(getattr(node, "workeroutput", {}).get(KEY, ()))


def _is_part(argument: str) -> bool:
    """Returns whether an argument names a part of the suite or of a file."""
    is_module = argument.startswith(INSTALLED_SUITE)
    return is_module or "::" in argument or SUITE in Path(argument).resolve().parents


# Files of `tests/conformance`; the others follow as they stand. Scenes come once, on a quick model, and
# on others later.
FIRST = (
    *("test_order", "scenes once", "test_stream", "test_cancel", "test_bad_input"),
    *("test_caps_and_stop", "test_logprobs", "test_sampling", "test_reuse", "test_side_effects"),
    *("test_scale", "test_speculation", "test_prefix", "test_scenes"),
)
LAST = "test_drawn_tokens_have_their_probabilities"  # thousands of draws catch little else


def _rank(item: pytest.Item) -> tuple[bool, int]:
    """What catches most in a second comes first, so that a bug of an engine that nobody here has seen
    is met early; the order decides no verdict. Those that are no conformance tests stay behind."""
    name = item.path.stem
    if name == "test_scenes" and QUICKEST_MODEL in item.name:
        name = "scenes once"
    is_late = name not in FIRST or item.name.startswith(LAST)
    return not is_conformance_test(item), len(FIRST) if is_late else FIRST.index(name)
