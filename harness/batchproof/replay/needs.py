"""What an engine must be capable of before a failure can show on it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from batchproof.api import Capability
from batchproof.findings.failure import Failure
from batchproof.findings.finding import Rule

BY_CAPABILITY: Mapping[Capability, AbstractSet[Rule]] = {
    Capability.TRACING: {
        *(Rule.NAMES, Rule.POSITIONS, Rule.QUERY_LEN, Rule.SAMPLED, Rule.PREFIX),
        Rule.DRAFTS,
        *(Rule.TWO_ROWS, Rule.QUEUES, Rule.SLOTS),
        *(Rule.STEP_BOUND, Rule.IDLE_STEP, Rule.FINISHED_ONCE),
        *(Rule.POOL, Rule.ACCOUNTING, Rule.LEFTOVER_BLOCKS, Rule.NUM_SAMPLED),
        *(Rule.CANCELLED_FED, Rule.CANCELLED_ROW, Rule.CANCELLED_BLOCKS, Rule.FREED_TWICE),
    },
    Capability.SCHEDULING: {
        *(Rule.TOKEN_BUDGET, Rule.FIRST_COME, Rule.ARRIVAL_ORDER, Rule.DECODES, Rule.REFILL),
        *(Rule.LATE_FINISH, Rule.LATE_ADMISSION, Rule.LATE_ROWS, Rule.LATE_SLOTS),
    },
    Capability.LOGITS: {
        *(Rule.LOGITS_MISSING, Rule.LOGITS_SHAPE, Rule.LOGITS_FINITE, Rule.LOGITS, Rule.LOGITS_RMS),
        *(Rule.RELATION_LOGITS, Rule.RETURNED, Rule.UNSEEN_MOVES, Rule.SEEN_STAYS),
    },
    Capability.MASKING: {Rule.MASK, Rule.MASK_LEAK, Rule.MASK_SHAPE},
}


def lacking(failure: Failure, capabilities: AbstractSet[Capability]) -> Capability | None:
    """Returns the missing capability without which neither presence nor absence of the failure says
    anything, or None.
    """
    runs = (*failure.scene.runs, *failure.scene.other)
    needed = {each for each, rules in BY_CAPABILITY.items() if failure.rule in rules}
    if any(run.workload.needs_stepping for run in runs):
        needed.add(Capability.STEPPING)
    if any(run.workload.config.num_speculative_tokens for run in runs):
        needed.add(Capability.SPECULATION)
    return min(needed - capabilities, default=None)
