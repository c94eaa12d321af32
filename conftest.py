"""The harness is a pytest plugin; everything it does lives in `batchproof.plugin`."""

import os
from pathlib import Path

pytest_plugins = ["batchproof.plugin", "pytester"]

# pytest.ini makes the packages importable here; processes that tests start find them by this.
_roots = [str(Path(__file__).parent / name) for name in ("harness", "implementations", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*_roots, os.environ.get("PYTHONPATH")]))
