"""The plugin at work: options in, trials to the tests, a table engine x promise out.

`batchproof.plugin` registers it in the runs that need it; the conftest.py of a checkout in all. It
imports no torch: `batchproof.plugin.testing` joins it in the processes that run tests.
"""

from __future__ import annotations

from batchproof.plugin.isolation import pytest_cmdline_main, pytest_xdist_setupnodes
from batchproof.plugin.options import pytest_addoption, pytest_configure, pytest_report_header

__all__ = [
    "pytest_addoption",
    "pytest_cmdline_main",
    "pytest_configure",
    "pytest_report_header",
    "pytest_xdist_setupnodes",
]
