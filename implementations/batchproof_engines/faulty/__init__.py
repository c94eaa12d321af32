"""Lying engines: each an honest one with a single planted fault, modelled on a real bug.

They prove the harness, not the other way round: a suite that lets one of them pass has a hole. Kept
apart from the honest engines; `--engine fault:NAME` selects one.
"""

from batchproof_engines.faulty import (  # noqa: F401 - each registers its engines
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
from batchproof_engines.faulty.fault import REGISTERED, Fault

__all__ = ["FAULTS", "Fault"]

FAULTS: dict[str, Fault] = dict(REGISTERED)
