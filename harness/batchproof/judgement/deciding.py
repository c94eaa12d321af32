"""Which setting decides whether a requirement holds: it is asked in other configurations."""

from collections.abc import Callable
from dataclasses import dataclass, field

from batchproof.records.matrix import BREAKS, Settings
from batchproof.records.verdict import RequirementOutcome

Ask = Callable[[Settings], RequirementOutcome]  # of the requirement alone, in one configuration


class NoMoreProbes(Exception):
    """Raised by an `Ask` once no more runs are allowed."""


@dataclass(frozen=True)
class Found:
    """What a search found; the fields are those of `Difference`."""

    at: Settings
    decisive: Settings
    unasked: Settings = field(default_factory=dict)
    note: str = ""


def smallest_difference(breaking: Settings, holding: Settings, ask: Ask) -> Found:
    """Takes the settings in which the requirement breaks towards those in which it holds, one axis
    after another, as long as it breaks. What is left decides: with any one of these axes as in
    `holding` it holds, or cannot be asked. Raises `NoMoreProbes`."""
    if ask(breaking) not in BREAKS:
        return Found(breaking, {}, note="it breaks there among other tests, not when it is asked alone")
    if (outcome := ask(holding)) != "held":
        return Found(breaking, {}, note=f"where it held, it is {outcome} when it is asked alone")
    at = dict(breaking)
    unasked: dict[str, str] = {}
    decisive: dict[str, str] = {}
    is_smaller = True
    while is_smaller:
        is_smaller, decisive, unasked = False, {}, {}
        for axis in [axis for axis in at if at[axis] != holding[axis]]:
            outcome = ask(at | {axis: holding[axis]})
            if outcome in BREAKS:
                at[axis], is_smaller = holding[axis], True
            elif outcome == "held":
                decisive[axis] = holding[axis]
            else:
                unasked[axis] = holding[axis]
    return Found(at, decisive, unasked)
