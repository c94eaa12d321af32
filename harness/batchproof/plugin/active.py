"""The plugin at work: options in, trials to the tests, a table engine x promise out.

`batchproof.plugin` registers it in the runs that need it; the conftest.py of a checkout in all.
"""

from __future__ import annotations

import gc

from batchproof.plugin.benchmarks import growth, measured
from batchproof.plugin.isolation import pytest_cmdline_main
from batchproof.plugin.options import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
)
from batchproof.plugin.problems import pytest_collection
from batchproof.plugin.spread import pytest_xdist_setupnodes
from batchproof.plugin.summary import (
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)
from batchproof.plugin.trials import laboratory, pytest_generate_tests, trial

__all__ = [
    "growth",
    "laboratory",
    "measured",
    "pytest_addoption",
    "pytest_cmdline_main",
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_xdist_setupnodes",
    "trial",
]

# Once in a process: torch and transformers stay, and each collection that walks them, of which pytest
# makes several at the end of a session, takes half a second.
gc.freeze()
