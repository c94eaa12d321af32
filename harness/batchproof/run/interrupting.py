"""What a trial does with an engine besides requests: new weights, sleep, pauses, a cleared cache."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from batchproof.api import Capability, Engine
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import (
    CLEAR,
    PAUSE,
    RESUME,
    SLEEP,
    UPDATE,
    UPDATE_IN_PART,
    WAKE,
    Interruption,
    Workload,
)

NEEDED = {
    **dict.fromkeys((SLEEP, WAKE), Capability.SLEEPING),
    **dict.fromkeys((PAUSE, RESUME), Capability.PAUSING),
    CLEAR: Capability.CACHE_CLEARING,
    **dict.fromkeys((UPDATE, UPDATE_IN_PART), Capability.WEIGHT_UPDATES),
}


def needed_by(workload: Workload) -> frozenset[Capability]:
    """Returns the capabilities without which what is done with the engine cannot be done."""
    needed = {NEEDED[each.kind] for each in workload.interruptions}
    if workload.weights:
        needed.add(Capability.WEIGHT_UPDATES)
    if workload.is_interrupted:
        needed.add(Capability.INTERRUPTION)
    return frozenset(needed)


def interrupter(engine: Engine, oracle: Oracle, weights: int) -> Callable[[Interruption], None]:
    """Returns what does with the engine, which has these weights, what an interruption says. Raises
    what the engine raises."""

    def interrupt(asked: Interruption) -> None:
        nonlocal weights
        if not asked.is_update:
            getattr(engine, "clear_cache" if asked.kind == CLEAR else asked.kind)()
            return
        before, after = (oracle.under((), each).subject.model for each in (weights, asked.weights))
        names = differing(before, after) if asked.kind == UPDATE_IN_PART else None
        engine.update_weights(after, names)  # type: ignore[attr-defined]
        weights = asked.weights

    return interrupt


def differing(before: PreTrainedModel, after: PreTrainedModel) -> Sequence[str]:
    """Returns the names of the parameters that differ."""
    new = dict(after.named_parameters())
    return [name for name, old in before.named_parameters() if not torch.equal(old, new[name])]
