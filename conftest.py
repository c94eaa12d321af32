"""The harness is a pytest plugin; everything it does lives in `batchproof.plugin`."""

import os
from pathlib import Path

import pytest

import batchproof

HERE = Path(__file__).parent
if not Path(batchproof.__file__).is_relative_to(HERE):
    raise pytest.UsageError(
        f"the package installed in {Path(batchproof.__file__).parent} hides that of this checkout: "
        "`pip install --no-deps -e .`, or uninstall it"
    )

pytest_plugins = ["batchproof.plugin", "batchproof.plugin.active", "pytester"]

# pytest.ini makes the packages importable here; processes that tests start find them by this.
_roots = [str(HERE / name) for name in ("harness", "implementations", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*_roots, os.environ.get("PYTHONPATH")]))
