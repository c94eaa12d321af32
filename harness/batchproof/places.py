"""Where the project's files lie: in a checkout, or in an installed package."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _checkout() -> Path | None:
    """The repository's root, if the package is imported from its source root."""
    root = PACKAGE.parents[1]
    return (
        root if (root / "tests" / "conformance").is_dir() and PACKAGE.parent.name == "harness" else None
    )


CHECKOUT = _checkout()
ROOT = CHECKOUT or Path.cwd()  # results and released engines' environments lie below it
CASES = CHECKOUT / "cases" if CHECKOUT else PACKAGE / "curated"
SUITE = CHECKOUT / "tests" / "conformance" if CHECKOUT else PACKAGE / "suite"
