"""Honest oddities: engines of unusual design that keep every promise.

They test the harness from the other side than the planted faults of `faulty`: a suite that blames one
of them demands more than the contract does. `--engine odd:NAME` selects one. An oddity is in any module
of this package; the modules are found, not listed.
"""

from importlib import import_module
from pkgutil import iter_modules

from batchproof_engines.odd.oddity import ODDITIES, Oddity

__all__ = ["ODDITIES", "Oddity"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
