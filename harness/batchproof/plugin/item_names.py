"""Names a test as a person types it on pytest's command line. `again:` prints it and `--xfails` reads
it.
"""

from __future__ import annotations

import pytest

from batchproof.places import CHECKOUT, SUITE

INSTALLED_SUITE = "batchproof.suite."


def name_of(item: pytest.Item) -> str:
    """Returns the node id, if it is a path from the root of the run.

    The installed suite is outside that root: its tests are named by module, for `--pyargs`. Tests of
    a checkout that is used from another folder are named by absolute path.
    """
    _, separator, function = item.nodeid.partition("::")
    if CHECKOUT is None and item.path.is_relative_to(SUITE):
        return f"{INSTALLED_SUITE}{item.path.stem}{separator}{function}"
    if not item.path.is_relative_to(item.config.rootpath):
        return f"{item.path}{separator}{function}"
    return item.nodeid
