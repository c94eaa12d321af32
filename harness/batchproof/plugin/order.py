"""The order of the conformance tests: what catches most in a second comes first.

A bug of an engine that nobody here has seen is met early that way; the order decides no verdict.
"""

import pytest

from batchproof.models.embedded import QUICKEST_MODEL
from batchproof.plugin.items import is_conformance_test

# Files of `tests/conformance`; the others follow as they stand. Scenes come once, on a quick model, and
# on others later.
FIRST = (
    *("test_order", "scenes once", "test_stream", "test_cancel", "test_bad_input"),
    *("test_caps_and_stop", "test_logprobs", "test_sampling", "test_reuse", "test_side_effects"),
    *("test_scale", "test_speculation", "test_prefix", "test_scenes"),
)
LAST = "test_drawn_tokens_have_their_probabilities"  # thousands of draws catch little else


def sort(items: list[pytest.Item]) -> None:
    """Sorts the items in place; those that are no conformance tests stay behind, as they are."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[bool, int]:
    name = item.path.stem
    if name == "test_scenes" and QUICKEST_MODEL in item.name:
        name = "scenes once"
    is_late = name not in FIRST or item.name.startswith(LAST)
    return not is_conformance_test(item), len(FIRST) if is_late else FIRST.index(name)
