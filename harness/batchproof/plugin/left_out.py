"""What a run leaves out of the suite: by -k, -m, --deselect, --lf, a shard, or by naming single tests.

With workers it is they who deselect; each tells the controller when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchproof.places import SUITE
from batchproof.plugin.item_names import INSTALLED_SUITE
from batchproof.plugin.requirement_ids import is_conformance_test

KEY = "batchproof_left_out"
LEFT_OUT: pytest.StashKey[LeftOut] = pytest.StashKey()
WAYS = {
    "keyword": "-k",
    "markexpr": "-m",
    "deselect": "--deselect",
    "lf": "--lf",
    "requirement": "--requirement",
    "shard": "--shard",
}


def keep(
    config: pytest.Config, items: list[pytest.Item], is_kept: Callable[[pytest.Item], bool]
) -> None:
    """Deselects all other tests."""
    others = [item for item in items if not is_kept(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = filter(is_kept, items)


def register(config: pytest.Config) -> None:
    """Registers the plugin, in all processes."""
    config.stash[LEFT_OUT] = left_out = LeftOut(config)
    config.pluginmanager.register(left_out, "batchproof-left-out")


class LeftOut:
    """The plugin that collects the node ids of deselected conformance tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._names: set[str] = set()

    def num_without(self, finished: Collection[str]) -> int:
        """Returns how many tests were deselected, those aside that a journal holds as finished."""
        return len(self._names.difference(finished))

    @property
    def is_uncounted(self) -> bool:
        """Returns whether tests may be left out that were never collected."""
        return bool(self._config.getoption("lf", False)) or any(self._parts())

    def ways(self) -> list[str]:
        """Returns the options that leave tests out, as they were typed or configured."""
        option = self._config.option
        found = [flag for dest, flag in WAYS.items() if _is_given(getattr(option, dest, None))]
        models = ["--model"] if option.model else []
        return [*found, *models, *(["naming single tests"] if any(self._parts()) else [])]

    def _parts(self) -> Iterator[str]:
        """Yields the arguments that name a part of the suite or of a file."""
        for argument in self._config.args:
            path = Path(argument.partition("::")[0]).resolve()
            is_module = argument.startswith(INSTALLED_SUITE)
            if "::" in argument or is_module or SUITE in path.parents:
                yield argument

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Collects what is deselected, but benchmarks and tests of other things."""
        self._names |= {item.nodeid for item in items if is_conformance_test(item)}

    def pytest_sessionfinish(self) -> None:
        """Tells the controller, in a worker."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[KEY] = sorted(self._names)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes over what a worker has told."""
        self._names.update(getattr(node, "workeroutput", {}).get(KEY, ()))


def _is_given(value: Any) -> bool:
    return value.number > 1 if hasattr(value, "number") else bool(value)
