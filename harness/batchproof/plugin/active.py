"""The plugin at work: options in, trials to the tests, a table engine x promise out.

`batchproof.plugin` registers it in the runs that need it; the conftest.py of a checkout in all. It
imports no torch: `batchproof.plugin.testing` joins it in the processes that run tests.
"""

from __future__ import annotations

from batchproof.plugin.isolation import pytest_cmdline_main
from batchproof.plugin.options import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
)
from batchproof.plugin.spread import pytest_xdist_setupnodes
from batchproof.plugin.summary import (
    pytest_sessionfinish,
    pytest_terminal_summary,
)

__all__ = [
    "pytest_addoption",
    "pytest_cmdline_main",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_xdist_setupnodes",
]
