"""Planted faults: each is an honest engine with a single lie, modelled on a real bug.

They test the harness, not the other way round: a suite that lets one of them pass has a hole. They are
kept apart from the honest engines; `--engine fault:NAME` selects one.
"""

from batchproof_engines.faulty import (  # noqa: F401 - each registers its faults
    accounting,
    addressing,
    cancelling,
    captured,
    choosing,
    chunking,
    compaction,
    contagion,
    drawing,
    inputs,
    lateness,
    layers,
    liveness,
    logprobs,
    masks,
    numerics,
    padding,
    paging,
    penalties,
    positions,
    preemption,
    prefix_cache,
    prompt_logprobs,
    reuse,
    routing,
    scale,
    scheduling,
    shapes,
    sharing,
    side_effects,
    speculating,
    state_owners,
    state_prefixes,
    state_updates,
    stop_sequences,
    stopping,
    streams,
)
from batchproof_engines.faulty.fault import REGISTERED, Fault

__all__ = ["FAULTS", "Fault"]

FAULTS: dict[str, Fault] = dict(REGISTERED)
