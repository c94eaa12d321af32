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
)

NEEDED = {
    **dict.fromkeys((SLEEP, WAKE), Capability.SLEEPING),
    **dict.fromkeys((PAUSE, RESUME), Capability.PAUSING),
    CLEAR: Capability.CACHE_CLEARING,
    **dict.fromkeys((UPDATE, UPDATE_IN_PART), Capability.WEIGHT_UPDATES),
}


def interrupter(
    engine: Engine, oracle: Oracle, weights: int, interruptions: Sequence[Interruption]
) -> Callable[[Interruption], None]:
    """Returns what does with the engine, which has these weights, what each interruption says, in their
    order. It raises what the engine raises.

    The models that updates need are built here, because that is no time of the engine's.
    """
    models: list[tuple[PreTrainedModel, Sequence[str] | None]] = []
    for each in interruptions:
        if each.is_update:
            before, after = (oracle.under((), n).subject.model for n in (weights, each.weights))
            names = differing(before, after) if each.kind == UPDATE_IN_PART else None
            models.append((after, names))
            weights = each.weights
    updates = iter(models)

    def interrupt(asked: Interruption) -> None:
        if asked.is_update:
            engine.update_weights(*next(updates))  # type: ignore[attr-defined]
        else:
            getattr(engine, "clear_cache" if asked.kind == CLEAR else asked.kind)()

    return interrupt


def differing(before: PreTrainedModel, after: PreTrainedModel) -> Sequence[str]:
    """Returns the names of the parameters that differ."""
    new = dict(after.named_parameters())
    return [name for name, old in before.named_parameters() if not torch.equal(old, new[name])]
