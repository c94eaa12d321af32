"""Lying engines: each an honest one with a single planted fault, modelled on a real bug.

They prove the harness, not the other way round: a suite that lets one of them pass has a hole. Kept
apart from the honest engines; `--engine fault:NAME` selects one.
"""

from implementations.faulty import (  # noqa: F401 - importing a module plants its faults
    accounting,
    addressing,
    cancelling,
    captured,
    chunking,
    compaction,
    inputs,
    lateness,
    liveness,
    masks,
    numerics,
    padding,
    paging,
    positions,
    preemption,
    prefix_cache,
    reuse,
    routing,
    scheduling,
    sharing,
    side_effects,
    stopping,
    streams,
)
from implementations.faulty.fault import REGISTERED, Fault

__all__ = ["FAULTS", "Fault"]

FAULTS: dict[str, Fault] = dict(REGISTERED)
