"""Honest oddities: engines of unusual design that keep every promise.

They test the harness from the other side than the planted faults of `faulty`: a suite that blames one
of them demands more than the contract does. `--engine odd:NAME` selects one.
"""

from batchproof_engines.odd import (  # noqa: F401 - each registers its oddities
    admission,
    blocks,
    choosing,
    computing,
    delivery,
    drawing,
    lateness,
    states,
    waves,
    wording,
)
from batchproof_engines.odd.oddity import REGISTERED, Oddity

__all__ = ["ODDITIES", "Oddity"]

ODDITIES: dict[str, Oddity] = dict(REGISTERED)
