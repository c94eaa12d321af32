"""The order of the conformance tests: what catches most in a second comes first.

A bug of an engine that nobody here has seen is met early that way; the order decides no verdict.
"""

from __future__ import annotations

import pytest

from batchproof.plugin.items import is_conformance_test, trial_of

# Files of `tests/conformance`; others follow as they stand. Scenes meet most, on the first model.
SCENES = "test_scenes"
FIRST = ("test_order", SCENES, "test_logprobs", "test_sampling", "test_caps_and_stop")
SECOND = ("test_stream", "test_cancel", "test_speculation", "test_prefix", "test_reuse", "test_scale")


def sort(items: list[pytest.Item]) -> None:
    """Sorts the items in place; those that are no conformance tests stay behind, as they are."""
    leading: dict[str, str] = {}  # engine -> the first model that it meets scenes on
    for item in items:
        if item.path.stem == SCENES and (trial := trial_of(item)) is not None:
            leading.setdefault(*trial)
    items.sort(key=lambda item: _rank(item, leading))


def _rank(item: pytest.Item, leading: dict[str, str]) -> tuple[bool, int]:
    files = (*FIRST, *SECOND)
    name = item.path.stem
    place = files.index(name) if name in files else len(files)
    trial = trial_of(item)
    if name == SCENES and trial is not None and leading[trial[0]] != trial[1]:
        place = len(FIRST) - 1  # another model shows little more
    return not is_conformance_test(item), place
