"""Which setting decides whether a requirement holds: searches that ask it in other configurations.

A search is a generator: it yields the settings in which it wants its requirement asked alone, is sent
the outcome, and returns what it found. `run_searches` asks for many at once, since a run of the suite
can ask several requirements in one configuration.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batchproof.records.matrix import BREAKS, Settings
from batchproof.records.verdict import RequirementOutcome

Outcomes = Mapping[str, RequirementOutcome]


@dataclass(frozen=True)
class Found:
    """What a search found; the fields are those of `Difference`."""

    at: Settings
    decisive: Settings
    unasked: Settings = field(default_factory=dict)
    note: str = ""


Search = Generator[Settings, RequirementOutcome, Found]


def smallest_difference(breaking: Settings, holding: Settings) -> Search:
    """Takes the settings in which the requirement breaks towards those in which it holds, one axis
    after another, as long as it breaks. What is left decides: with any one of these axes as in
    `holding` it holds, or cannot be asked."""
    if (yield breaking) not in BREAKS:
        return Found(breaking, {}, note="it breaks there among other tests, not when it is asked alone")
    if (outcome := (yield holding)) != "held":
        return Found(breaking, {}, note=f"where it held, it is {outcome} when it is asked alone")
    at = dict(breaking)
    unasked: dict[str, str] = {}
    decisive: dict[str, str] = {}
    is_smaller = True
    while is_smaller:
        is_smaller, decisive, unasked = False, {}, {}
        for axis in [axis for axis in at if at[axis] != holding[axis]]:
            outcome = yield at | {axis: holding[axis]}
            if outcome in BREAKS:
                at[axis], is_smaller = holding[axis], True
            elif outcome == "held":
                decisive[axis] = holding[axis]
            else:
                unasked[axis] = holding[axis]
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


Named = tuple[str, int]  # a requirement, or several that are asked as one, and which of its searches
Key = tuple[tuple[str, str], ...]  # settings that can be looked up
Ask = Callable[[Settings, Collection[str]], Outcomes]


def run_searches(
    searches: Mapping[Named, Search], ask: Ask, most_runs: int
) -> Iterator[tuple[Named, Found]]:
    """Runs searches for requirements and yields what each has found that comes to an end.

    The settings that most of them wait for are asked first; `ask` is called at most `most_runs` times.
    """
    known: dict[tuple[str, Key], RequirementOutcome] = {}
    waiting: dict[Named, Key] = {}

    def advance(each: Named, outcome: RequirementOutcome | None) -> Iterator[tuple[Named, Found]]:
        """Sends an outcome, then all that are known, until the search wants an unknown one. Yields
        what it found if it ends."""
        name, search = each[0], searches[each]
        try:
            wanted = _key(search.send(outcome) if outcome else next(search))
            while (name, wanted) in known:
                wanted = _key(search.send(known[name, wanted]))
            waiting[each] = wanted
        except StopIteration as end:
            waiting.pop(each, None)
            yield each, end.value

    for each in searches:
        yield from advance(each, None)
    for _ in range(most_runs):
        if not waiting:
            return
        keys = [*waiting.values()]
        most = max(keys, key=keys.count)
        asking = [each for each, key in waiting.items() if key == most]
        outcomes = ask(dict(most), {name for name, _ in asking})
        for each in asking:
            known[each[0], most] = outcome = outcomes.get(each[0], "not run")
            yield from advance(each, outcome)


def _key(settings: Settings) -> Key:
    return tuple(sorted(settings.items()))
