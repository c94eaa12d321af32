"""Which setting decides whether a requirement holds: searches that ask it in other configurations.

A search is a generator: it yields the settings in which it wants its requirement asked alone, is sent
the outcome, and returns what it found. `run_searches` asks for many at once, since a run of the suite
can ask several requirements in one configuration.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from batchproof.records.matrix import BREAKS, Found, Settings
from batchproof.records.verdict import RequirementOutcome

MOST_TOGETHER = 20  # requirements of a finding that are asked in one run: some need a history
Name = TypeVar("Name")  # of a requirement, or of several that are asked as one
Key = tuple[tuple[str, str], ...]  # settings that can be looked up


Search = Generator[Settings, RequirementOutcome, Found]


def smallest_difference(breaking: Settings, holding: Settings) -> Search:
    """Takes the settings in which the requirement breaks towards those in which it holds, one axis
    after another, as long as it breaks. What is left decides: with any one of these axes as in
    `holding` it holds, or cannot be asked."""
    if (yield breaking) not in BREAKS:
        return Found(breaking, {}, note="it breaks there among other tests, not when it is asked alone")
    if (outcome := (yield holding)) != "held":
        return Found(breaking, {}, note=f"where it held, it is {outcome} when it is asked alone")
    at, is_smaller = dict(breaking), True
    while is_smaller:
        is_smaller, left = False, {}
        for axis in [axis for axis in at if at[axis] != holding[axis]]:
            left[axis] = yield at | {axis: holding[axis]}
            if left[axis] in BREAKS:
                at[axis], is_smaller = holding[axis], True
    decisive = {axis: holding[axis] for axis, outcome in left.items() if outcome == "held"}
    unasked = {axis: holding[axis] for axis in left if axis not in decisive}
    return Found(at, decisive, unasked)


def change_between(axis: str, values: Sequence[str], does_break_first: bool) -> Search:
    """Looks for two neighbours on an ordered axis between which the requirement changes, by halving:
    it is another at the last value than at the first."""
    low, high = 0, len(values) - 1
    while high - low > 1:
        middle = (low + high) // 2
        outcome = yield {axis: values[middle]}
        if outcome not in (*BREAKS, "held"):  # it says nothing: look next to it
            values = [*values[:middle], *values[middle + 1 :]]
            high -= 1
        elif (outcome in BREAKS) == does_break_first:
            low = middle
        else:
            high = middle
    first, last = {axis: values[low]}, {axis: values[high]}
    return (yield from smallest_difference(*((first, last) if does_break_first else (last, first))))


Ask = Callable[[Settings, Collection[Name]], Mapping[Name, RequirementOutcome]]


def run_searches(
    searches: Iterable[tuple[Name, Search]], ask: Ask[Name], most_runs: int
) -> Iterator[tuple[Name, Found]]:
    """Runs searches for requirements and yields what each has found that comes to an end. A name may
    have more than one search.

    The settings that most of them wait for are asked first; `ask` is called at most `most_runs` times.
    """
    known: dict[tuple[Name, Key], RequirementOutcome] = {}
    waiting = {search: (name, _key(next(search))) for name, search in searches}
    while waiting:
        told = {search: wanted for search, wanted in waiting.items() if wanted in known}
        for search, wanted in told.items():
            try:
                waiting[search] = (wanted[0], _key(search.send(known[wanted])))
            except StopIteration as end:
                del waiting[search]
                yield wanted[0], end.value
        if not told:
            if not most_runs:
                return
            most_runs -= 1
            keys = [key for _, key in waiting.values()]
            most = max(keys, key=keys.count)
            names = {name for name, key in waiting.values() if key == most}
            outcomes = ask(dict(most), names)
            known |= {(name, most): outcomes.get(name, "not run") for name in names}


def _key(settings: Settings) -> Key:
    return tuple(sorted(settings.items()))
