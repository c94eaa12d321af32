"""The order of the conformance tests: what catches most in a second comes first.

A bug of an engine that nobody here has seen is met early that way; the order decides no verdict.
"""

from __future__ import annotations

import pytest

from batchproof.models.embedded import QUICKEST_MODEL
from batchproof.plugin.items import is_conformance_test

# Files of `tests/conformance`; the others follow as they stand. Scenes come once, on a quick model, and
# on others later.
FIRST = (
    *("test_order", "scenes once", "test_logprobs", "test_sampling", "test_caps_and_stop"),
    *("test_stream", "test_cancel", "test_speculation", "test_prefix", "test_scenes", "test_reuse"),
    "test_scale",
)


def sort(items: list[pytest.Item]) -> None:
    """Sorts the items in place; those that are no conformance tests stay behind, as they are."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[bool, int]:
    name = item.path.stem
    if name == "test_scenes" and QUICKEST_MODEL in item.name:
        name = "scenes once"
    return not is_conformance_test(item), FIRST.index(name) if name in FIRST else len(FIRST)
