"""Honest oddities: engines that nobody would write like this, and that keep every promise.

They prove the harness from the other side than the lying engines of `faulty`: a suite that blames one
of them demands more than the contract says. `--engine odd:NAME` selects one.
"""

from batchproof_engines.odd import (  # noqa: F401 - each registers its engines
    admission,
    blocks,
    computing,
    delivery,
    lateness,
    waves,
)
from batchproof_engines.odd.oddity import REGISTERED, Oddity

__all__ = ["ODDITIES", "Oddity"]

ODDITIES: dict[str, Oddity] = dict(REGISTERED)
