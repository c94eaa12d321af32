"""The kill table: one planted fault before the suite as the task of a worker, which attempts remain,
and all kills as a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from batchproof.models.embedded import DEFAULT_MODELS, EMBEDDED
from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance
from batchproof.run.registry import faults as known_faults
from batchproof_lab.conformance_modules import conformance_functions, function_of
from batchproof_lab.fingerprint import fingerprint
from batchproof_lab.suite_run import Effort, own_failures, process_laboratory, run_suite

if TYPE_CHECKING:
    from batchproof_engines.faulty.fault import Fault

# Quick ones first: where a fault is first caught, further seeds are tried.
QUICK_FIRST = ("gpt2-random", "mistral-window", "llama-random", "llama-hash", "gpt2-hash")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Runs a fault on some models, in one session, by the tests of its promise until it is caught.

    `is_wide`: if those tests miss it, all others run too. `only`: this test function runs alone, to
    see whether it catches anything.
    """

    fault: str
    models: tuple[str, ...]
    seed: int
    is_wide: bool = False
    only: str | None = None

    @property
    def key(self) -> str:
        how = ", by all tests" if self.is_wide else f", by {self.only} alone" if self.only else ""
        return f"{self.fault} on {'+'.join(self.models)}, seed {self.seed}{how}"

    @property
    def arguments(self) -> list[str]:
        return ["-x", f"--hypothesis-seed={self.seed}", *(f"--model={model}" for model in self.models)]


@dataclass(frozen=True, slots=True)
class Kill:
    """What the suite reported. `caught_by` is the function of the first test that failed; None: the
    fault survived."""

    caught_by: str | None = None
    broken: str | None = None  # the promise that failure named
    cause: str | None = None  # what its diagnosis named
    examples: int = 0  # workloads given to the engine until then, or in all
    seconds: float = 0.0
    functions: tuple[str, ...] = ()  # all test functions that caught it
    own_failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hunt:
    attempt: Attempt
    kill: Kill


def make_attempt(attempt: Attempt, time_limit_s: float) -> Hunt:
    """Runs the tests of the promise that the fault breaks and, in a wide attempt that they miss, all
    others. The time limit is in seconds, for one call of the engine."""
    declared = f"promise(id='{known_faults()[attempt.fault].promise.id}')"
    if attempt.only is not None:
        name = attempt.only.rpartition("::")[2]
        return Hunt(attempt, _kill(attempt, ["-k", name, "--diagnose-for=0"], time_limit_s))
    kill = _kill(attempt, ["-m", declared], time_limit_s)
    if attempt.is_wide and not (kill.functions or kill.own_failures):
        others = _kill(attempt, ["-m", f"not {declared}"], time_limit_s)
        seconds = round(kill.seconds + others.seconds, 3)
        kill = replace(others, examples=kill.examples + others.examples, seconds=seconds)
    return Hunt(attempt, kill)


def _kill(attempt: Attempt, selection: list[str], time_limit_s: float) -> Kill:
    lab = process_laboratory("float32", time_limit_s)
    findings = run_suite(f"fault:{attempt.fault}", [*attempt.arguments, *selection], lab, _effort())
    first = findings.first
    caught = (function_of(each.test) for each in findings.catches if each.broken is not None)
    return Kill(
        caught_by=function_of(first.test) if first else None,
        broken=first.broken if first else None,
        cause=first.cause if first else None,
        examples=first.num_runs if first else findings.totals["num_runs"],
        seconds=round(first.seconds if first else findings.seconds, 3),
        functions=tuple(dict.fromkeys(caught)),
        own_failures=own_failures(findings),
    )


@cache
def _effort() -> Effort:
    """Returns the effort of a hunt. Generated workloads come first: a written case that fits says
    little about what seeds would find."""
    generated = (name for name, facts in conformance_functions().items() if facts.is_generated)
    return Effort(profile="default", first=tuple(generated))


@dataclass(frozen=True)
class KillRecord:
    """One session against one fault. `caught_by`: a test function; None: the fault survived."""

    broken: str | None  # the promise that the failure names
    cause: str | None  # what its diagnosis names
    seed: int = 0
    caught_by: str | None = None
    examples: int = 0  # workloads given to the engine until the first failure
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultRow:
    """One planted fault. `home`: the quickest model that shows it, else all models together."""

    kind: Annotated[str, Field(alias="class")]
    promise: str
    cause: str
    home: tuple[str, ...]
    kills: tuple[KillRecord, ...]  # at home, by seed
    lie: str = ""  # what the fault does, in a sentence
    thread: str = ""  # owner/repository#number of the bug it is modelled on
    models: tuple[str, ...] = ()  # that show it
    own_failures: tuple[str, ...] = ()  # where the harness broke instead of reporting the fault
    code: str = ""  # digest of the fault and of the tests that caught it at home


@dataclass(frozen=True)
class FunctionRow:
    """One conformance test function, and the faults it was the first to catch."""

    is_generated: bool
    faults: tuple[str, ...]


@dataclass(frozen=True)
class DiagnosisScore:
    """One vote for each fault and seed at home. `confusion`: expected cause -> named cause -> votes."""

    right: int = 0
    votes: int = 0
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class KillUpdate:
    """Rows that were made later than the rest."""

    faults: tuple[str, ...]
    made: Provenance


@dataclass(frozen=True)
class KillTableRecord:
    """`is_full`: all faults on all embedded models."""

    made: Provenance
    is_complete: bool
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    faults: Mapping[str, FaultRow]
    diagnosis: DiagnosisScore
    tests: Mapping[str, FunctionRow] = field(default_factory=dict)
    is_full: bool = False
    updates: tuple[KillUpdate, ...] = ()

    @property
    def num_caught(self) -> int:
        return sum(bool(row.home) for row in self.faults.values())


KILL_TABLE = FileKind("kill table", "batchproof.kill-table", 1, KillTableRecord)


class KillTable:
    """Faults, models and seeds of a campaign, and the kills so far."""

    def __init__(
        self,
        faults: Mapping[str, Fault],
        models: Sequence[str],
        seeds: Sequence[int],
        hunts: Iterable[Hunt] = (),
        busy: frozenset[str] | None = None,
    ) -> None:
        """Takes hunts in whatever order they were made. `busy`: the test functions that catch other
        faults, if this is an update."""
        self.faults, self.busy = faults, busy
        self.models = tuple(sorted(models, key=lambda model: _rank((model,))))
        self.seeds = tuple(seeds)
        # All faults, all models of a default run.
        self.is_full = set(faults) == set(known_faults()) and set(models) == set(DEFAULT_MODELS)
        self.kills = {hunt.attempt: hunt.kill for hunt in sorted(hunts, key=_place)}

    def todo(self) -> list[Attempt]:
        """Returns the attempts to make next: those of the first kind of which some are not made."""
        for attempts in (self.on_each_model, self.on_all_models, self.at_home, self.on_idle_tests):
            if left := [each for each in attempts() if each not in self.kills]:
                return left
        return []

    def on_each_model(self) -> list[Attempt]:
        """Returns each fault on each model, or on the only one that shows it, on the first seed."""
        return [
            Attempt(name, (model,), self.seeds[0])
            for model in self._known_models()
            for name, fault in self.faults.items()
            if (model == fault.shows_on if fault.shows_on else model in self.models)
        ]

    def on_all_models(self) -> list[Attempt]:
        """Returns attempts on all models for faults that the tests of their promise caught on no
        model alone: some need a long context, some mix up the models of a process, some show as another
        promise."""
        missed = [name for name in self.faults if self.home(name) is None]
        everywhere = self._known_models()
        return [Attempt(name, everywhere, self.seeds[0], is_wide=True) for name in missed]

    def _known_models(self) -> tuple[str, ...]:
        """Returns all models that tests need or that alone show a fault, those of the table first."""
        shown_on = [each.shows_on for each in self.faults.values() if each.shows_on]
        return tuple(dict.fromkeys((*self.models, *EMBEDDED, *shown_on)))

    def at_home(self) -> list[Attempt]:
        homes = {name: home for name in self.faults if (home := self.home(name))}
        return [
            Attempt(name, home, seed, is_wide=True)
            for seed in self.seeds[1:]
            for name, home in homes.items()
        ]

    def on_idle_tests(self) -> list[Attempt]:
        """Returns the next fault for each test function that has caught nothing yet."""
        if not self.is_full and self.busy is None:
            return []
        busy = {function for kill in self.kills.values() for function in kill.functions}
        busy |= self.busy or set()
        todo: list[Attempt] = []
        for function, facts in conformance_functions().items():
            own = [name for name, each in self.faults.items() if each.promise.id in facts.promises]
            attempts = (
                Attempt(name, home, self.seeds[0], only=function)
                for name in (*own, *self.faults)
                if (home := self.home(name))
            )
            if function not in busy:
                todo += islice((each for each in attempts if each not in self.kills), 1)
        return todo

    def home(self, name: str) -> tuple[str, ...] | None:
        """Returns the quickest model on which the fault is caught, else all of them together."""
        caught = [
            attempt.models
            for attempt, kill in self._of(name)
            if kill.caught_by and attempt.seed == self.seeds[0] and not attempt.only
        ]
        return min(caught, key=lambda models: (len(models), _rank(models)), default=None)

    def _of(self, name: str) -> list[tuple[Attempt, Kill]]:
        return [(attempt, kill) for attempt, kill in self.kills.items() if attempt.fault == name]

    def as_record(self, made: Provenance) -> KillTableRecord:
        tried = {attempt.fault for attempt in self.kills}
        rows = {name: self._row(fault) for name, fault in self.faults.items() if name in tried}
        return KillTableRecord(
            made=made,
            is_complete=not self.todo(),
            is_full=self.is_full,
            models=tuple(self.models),
            seeds=tuple(self.seeds),
            faults=rows,
            tests={
                function: FunctionRow(facts.is_generated, tuple(self._caught_by(function)))
                for function, facts in conformance_functions().items()
            },
            diagnosis=diagnosis(rows.values()),
        )

    def _caught_by(self, function: str) -> Iterable[str]:
        found = {each.fault for each, kill in self.kills.items() if function in kill.functions}
        return (name for name in self.faults if name in found)

    def _row(self, fault: Fault) -> FaultRow:
        made = self._of(fault.name)
        hunts = [(attempt, kill) for attempt, kill in made if not attempt.only]
        hit = {attempt.models for attempt, kill in hunts if kill.caught_by}
        home = self.home(fault.name)
        at_home = [(each, kill) for each, kill in hunts if home in (None, each.models)]
        return FaultRow(
            kind=fault.kind,
            promise=fault.promise.id,
            cause=fault.cause.name,
            home=home or (),
            kills=tuple(
                KillRecord(
                    kill.broken, kill.cause, each.seed, kill.caught_by, kill.examples, kill.seconds
                )
                for each, kill in at_home
            ),
            lie=fault.summary,
            thread=fault.thread,
            models=tuple(model for model in self._known_models() if (model,) in hit),
            own_failures=tuple(text for _, kill in made for text in kill.own_failures),
            code=fingerprint(fault.component, {kill.caught_by for _, kill in at_home if home}),
        )


def _place(hunt: Hunt) -> tuple[object, ...]:
    attempt = hunt.attempt
    return attempt.seed, attempt.only or "", len(attempt.models), _rank(attempt.models), attempt.key


def _rank(models: tuple[str, ...]) -> int:
    return QUICK_FIRST.index(models[0]) if models[0] in QUICK_FIRST else len(QUICK_FIRST)


def diagnosis(rows: Iterable[FaultRow]) -> DiagnosisScore:
    """One vote for each fault and seed on the fault's home models."""
    confusion: dict[str, Counter[str]] = {}
    for row in rows:
        for kill in row.kills:
            if kill.caught_by:
                confusion.setdefault(row.cause, Counter())[kill.cause or "NONE"] += 1
    return DiagnosisScore(
        right=sum(named[expected] for expected, named in confusion.items()),
        votes=sum(named.total() for named in confusion.values()),
        confusion={expected: dict(named) for expected, named in sorted(confusion.items())},
    )
