"""Sets how many workloads a test generates: few for built-in engines, more for a named one."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# With this profile every planted fault is caught by the tests of its promise.
BUILT_IN_PROFILE = "quick"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A test keeps the settings it is imported under, so they are set while its module is collected."""
    config = collector.config
    if config.getoption("--engine") or config.getoption("--hypothesis-profile"):
        return (yield)
    outer = settings.get_current_profile_name()
    settings.load_profile(BUILT_IN_PROFILE)
    try:
        return (yield)
    finally:
        settings.load_profile(outer)
