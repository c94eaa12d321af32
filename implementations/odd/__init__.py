"""Honest oddities: engines that nobody would write like this, and that keep every promise.

They prove the harness from the other side than the lying engines of `faulty`: a suite that blames one
of them demands more than the contract says. `--engine odd:NAME` selects one.
"""

from implementations.odd import (  # noqa: F401 - importing a module lists its oddities
    admission,
    blocks,
    computing,
    delivery,
    lateness,
    waves,
)
from implementations.odd.oddity import REGISTERED, Oddity

__all__ = ["ODDITIES", "Oddity"]

ODDITIES: dict[str, Oddity] = dict(REGISTERED)
