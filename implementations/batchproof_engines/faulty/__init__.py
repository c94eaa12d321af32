"""Planted faults: each is an honest engine with a single lie, modelled on a real bug.

They test the harness, not the other way round: a suite that lets one of them pass has a hole. They are
kept apart from the honest engines; `--engine fault:NAME` selects one. A fault is a class in any module
of this package; the modules are found, not listed.
"""

from importlib import import_module
from pkgutil import iter_modules

from batchproof_engines.faulty.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
