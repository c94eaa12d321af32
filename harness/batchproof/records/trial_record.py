"""The test record: what one conformance test compared, and the failure that it found.

The plugin makes it once, when the test ends. As JSON it travels with pytest's report from a worker
process to the controller (`batchproof.plugin.items`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """What was compared while a test ran, as trial and checks count it; counts add up over tests."""

    num_runs: int = 0  # workloads given to an engine, judged or not
    num_workloads: int = 0  # judged
    num_requests: int = 0
    num_steps: int = 0  # tokens compared
    num_near_ties: int = 0  # of those, proven near-ties
    num_logits: int = 0  # answers whose logits were compared as well
    seconds: float = 0.0  # from the first use of the trial to the end of the test
    engine_seconds: float = 0.0  # of those, in which the engine was built, served or was closed
    error_unit: float | None = None  # E of the model, once it was needed
    release: str | None = None  # the engine's name and version, if it says so
    precision: str = ""  # declared for the engine; empty: that of the model
    conventions: tuple[str, ...] = ()  # and settings, in the engine's own words
    notes: tuple[str, ...] = ()
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)  # notes, to which each test adds
    counters: dict[str, int] = field(default_factory=dict)  # what happened, by trace and engine

    def count(self, counted: Mapping[str, int]) -> None:
        """Adds what a trace shows, or an engine says, that happened."""
        for name, number in counted.items():
            self.counters[name] = self.counters.get(name, 0) + number

    def note(self, text: str) -> None:
        """Adds a note unless it is there already."""
        if text not in self.notes:
            self.notes += (text,)

    def note_item(self, text: str, item: str) -> None:
        """Adds an item to the note that begins with `text`, unless it is there already."""
        if item not in (listed := self.lists.get(text, ())):
            self.lists[text] = (*listed, item)


@dataclass(frozen=True)
class SourcePlace:
    """A line of source, in a file named from the root of the repository."""

    file: str
    line: int
    name: str  # of the function or class there


@dataclass(frozen=True)
class FindingRecord:
    """A broken promise as data. `rule` is the id of the check that found it; `facts` is what that rule
    saw, JSON values by name. Nothing about it is ever read from its text."""

    promise: str
    rule: str
    headline: str  # the first line of its report
    request_id: str | None = None
    step: int | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class FailureRecord(FindingRecord):
    """The failure of a test: the finding that decides its promise, and all that is known besides."""

    case: str | None = None  # a curated case
    cause: str | None = None  # what the diagnosis names
    replay: str | None = None  # path of the failure file that --repro has written
    others: tuple[FindingRecord, ...] = ()  # what the same runs break besides

    @property
    def raised_at(self) -> SourcePlace | None:
        """Returns the line of the engine that raised or hung, if one did."""
        at = self.facts.get("at")
        return SourcePlace(*at) if isinstance(at, list | tuple) else None


@dataclass(frozen=True)
class TrialRecord:
    """One conformance test on one engine and model."""

    engine: str
    model: str
    promises: tuple[str, ...]  # the test checks these
    function: str = ""  # of the test, without parameters
    parameters: Mapping[str, object] = field(default_factory=dict)  # of the test, curated case aside
    name: str = ""  # of the test, as --xfails reads it
    refused: str | None = None  # why the engine does not serve the model
    lacks: str | None = None  # the capability that it would need
    adequacy: str | None = None  # of a model that the user brought: what was measured
    is_adequate: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    has_happened: Mapping[str, bool] = field(default_factory=dict)  # what a trace must show
    failure: FailureRecord | None = None
    is_stale: bool = False  # a known failure that passes
    is_own_failure: bool = False  # the harness failed, not the engine
    is_wrong_input: bool = False  # the harness failed because of a wrong case or option
    requirement: str = ""  # its id

    @property
    def counted_for(self) -> tuple[str, ...]:
        """Returns the promises that the test counts for. A failure counts for the promise it broke,
        whichever test found it."""
        return (self.failure.promise,) if self.failure else self.promises

    @property
    def is_inadequate(self) -> bool:
        """Returns whether the test judged only tokens of a model that cannot show a fault in them.
        Logits could."""
        return not self.is_adequate and not self.ledger.num_logits
