"""Where files lie: cases and suite, results, and the environments of released engines.

The package is either imported from a checkout, whose `cases/` and `tests/` it uses, or installed, and
then holds copies of them.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_ABOVE = PACKAGE.parents[1]
_IS_SOURCE = PACKAGE.parent.name == "harness" and (_ABOVE / "tests" / "conformance").is_dir()
CHECKOUT = _ABOVE if _IS_SOURCE else None  # the root of the repository in whose sources it lies


def repository() -> Path:
    """Returns the root of the repository that the current folder belongs to, else that folder."""
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here)


def user_cache() -> Path:
    """Returns the folder for what can be made again, by the environment of this moment."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "batchproof"


CASES = CHECKOUT / "cases" if CHECKOUT else PACKAGE / "curated"
SUITE = CHECKOUT / "tests" / "conformance" if CHECKOUT else PACKAGE / "suite"
BENCHMARKS = CHECKOUT / "tests" / "benchmarks" if CHECKOUT else PACKAGE / "benchmarks"

# `results/` lies below the checkout for those who work in it, else below the current folder.
ROOT = CHECKOUT if CHECKOUT and Path.cwd().is_relative_to(CHECKOUT) else Path.cwd()
VERDICTS = ROOT / "results" / "engines"  # where `judge` writes
ENVIRONMENTS = CHECKOUT / ".engines" if CHECKOUT else user_cache() / "engines"

# The suite as an argument of pytest that is run in ROOT.
SUITE_ARGUMENTS = (
    ("--pyargs", "batchproof.suite")
    if CHECKOUT is None
    else (str(SUITE.relative_to(ROOT) if ROOT == CHECKOUT else SUITE),)
)
