"""The table engine x promise, to which the records of tests add up: as text and as a record; and the
verdict on the engine."""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from batchproof.models.embedded import EMBEDDED
from batchproof.records.journal import JournalEntry
from batchproof.records.provenance import Provenance
from batchproof.records.table import ConformanceTable, PromiseCell, Totals
from batchproof.records.texts import counted
from batchproof.records.verdict import Conditions, EngineVerdict
from batchproof.requirements.promises import Promise
from batchproof.requirements.verdict_of_journal import Asked, Outcome, cells_of, totals_of, verdict_of


@dataclass(frozen=True)
class SessionFacts:
    """A run of pytest, as it stands. `is_complete`: no selected test is missing."""

    made: Provenance
    engines: tuple[str, ...]
    conditions: Conditions
    precision: str
    torch: str  # its version
    exit_status: int
    is_complete: bool
    num_left_out: int = 0  # tests that were deselected
    is_uncounted: bool = False  # tests may be left out that were never collected


LEGEND = (
    "n: tests passed   ~n: with n near-ties   FAIL n: tests failed   known n: failed as expected",
    "no cap: the engine lacks a capability   refused: it does not serve the model   -: not run",
)


def outcomes_of(finished: Iterable[JournalEntry]) -> Iterator[Outcome]:
    """Yields the outcome of each conformance test."""
    for entry in finished:
        if entry.record is not None:
            yield entry.outcome, entry.record


def ordered(
    outcomes: Iterable[Outcome], engines: Sequence[str], models: Sequence[str]
) -> list[Outcome]:
    """Returns the outcomes as one process would report them: workers report in any order. Models that
    the run did not ask for come last."""
    engine_at = {name: at for at, name in enumerate(engines)}
    model_at = {name: at for at, name in enumerate(dict.fromkeys((*models, *EMBEDDED)))}
    return sorted(outcomes, key=lambda each: (engine_at[each[1].engine], model_at[each[1].model]))


def conformance(outcomes: list[Outcome], facts: SessionFacts) -> ConformanceTable:
    """Returns the table as a record, of ordered outcomes."""
    engines = tuple(dict.fromkeys(record.engine for _, record in outcomes))
    return ConformanceTable(
        made=facts.made,
        engines=engines,
        cells={engine: cells_of(engine, outcomes) for engine in engines},
        totals={engine: totals_of(engine, outcomes) for engine in engines},
        models=tuple(dict.fromkeys(record.model for _, record in outcomes)),
        device=facts.conditions.device,
        dtype=facts.conditions.dtype,
        precision=facts.precision,
        torch=facts.torch,
        promises={promise.id: promise.title for promise in Promise},
        notes=tuple(notes(outcomes)),
        exit_status=facts.exit_status,
        is_complete=facts.is_complete,
    )


def num_compared(outcomes: Iterable[Outcome]) -> int:
    """Returns the number of answers that prove something. What a known failure compared before it
    failed does not count.
    """
    return sum(record.ledger.num_requests for outcome, record in outcomes if outcome != "known")


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Yields the lines of the table, its legend, and the totals of each engine."""
    engines = list(dict.fromkeys(record.engine for _, record in outcomes))
    cells = {engine: cells_of(engine, outcomes) for engine in engines}
    widths = {e: max(7, len(e), *(len(c.text) for c in cells[e].values())) for e in engines}
    titles = max(len(str(promise)) for promise in Promise)
    yield " " * titles + "".join(f"  {engine:>{widths[engine]}}" for engine in engines)
    for promise in Promise:
        if any(promise.id in row for row in cells.values()):
            texts = (f"  {_text(cells[e].get(promise.id)):>{widths[e]}}" for e in engines)
            yield f"{promise!s:<{titles}}" + "".join(texts)
    yield from LEGEND
    for engine in engines:
        yield totals_line(engine, totals_of(engine, outcomes))


def _text(cell: PromiseCell | None) -> str:
    return "-" if cell is None else cell.text


def totals_line(engine: str, total: Totals) -> str:
    """Returns what was compared, in a line."""
    if not total.num_workloads:
        return f"{engine}: no workload was compared to its end"
    workloads, answers = counted(total.num_workloads, "workload"), counted(total.num_requests, "answer")
    tokens, near_ties = counted(total.num_steps, "token"), counted(total.num_near_ties, "near-tie")
    return f"{engine}: {workloads}, {answers} and {tokens} compared, {near_ties}"


def error_units(outcomes: Iterable[Outcome]) -> list[tuple[str, float]]:
    """Returns each model with its E, for models whose E was needed."""
    units = {(record.model, record.ledger.error_unit) for _, record in outcomes}
    return sorted((model, unit) for model, unit in units if unit is not None)


def adequacies(outcomes: Iterable[Outcome]) -> list[tuple[str, str, bool]]:
    """Returns each model, what was measured on it, and whether that is too little."""
    found = {
        (record.model, record.adequacy, not record.is_adequate)
        for _, record in outcomes
        if record.adequacy is not None
    }
    return sorted(found)


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns remarks on the session, each once, and how many tests each refused model has cost."""
    remarks = dict.fromkeys(note for _, record in outcomes for note in record.ledger.notes)
    refused = Counter(f"{r.engine} refuses {r.model}" for _, r in outcomes if r.refused is not None)
    return [*remarks, *(f"{what}: {counted(n, 'test')} not run" for what, n in refused.items())]


NOTHING_COMPARED = "NOTHING WAS COMPARED: this run proves nothing about any engine"
Line = tuple[str, bool]  # and whether it is bad news


def summary_lines(outcomes: list[Outcome]) -> Iterator[Line]:
    """Yields the lines of a session with conformance tests."""
    yield from ((line, False) for line in table(outcomes))
    for model, error_unit in error_units(outcomes):
        yield f"model {model}: E {error_unit:.2g}, the reference's own worst logit error", False
    for model, adequacy, is_too_little in adequacies(outcomes):
        verdict = "INADEQUATE: equal tokens prove little on this model" if is_too_little else "adequate"
        yield f"model {model}: {verdict}; {adequacy}", is_too_little
    yield from ((f"note: {note}", False) for note in notes(outcomes))
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong:
        yield f"{num_wrong} failed by a wrong case, not by an engine: see above", True
    if num_own := sum(record.is_own_failure for _, record in outcomes) - num_wrong:
        yield f"{num_own} failed by the harness itself, not by an engine: see above", True
    if not num_compared(outcomes) and not any(outcome == "failed" for outcome, _ in outcomes):
        yield NOTHING_COMPARED, True


def empty_selection(option: Namespace, num_run: int, deselected: Sequence[pytest.Item]) -> str | None:
    """Returns that -k and -m left no conformance test, for a session without one; None if nothing is to
    be said. `num_run` counts tests of other things."""
    words = [f"{k} {v!r}" for k, v in (("-k", option.keyword), ("-m", option.markexpr)) if v]
    if getattr(option, "benchmark_only", False) and num_run:
        return None
    if words and (not num_run or any("trial" in item.fixturenames for item in deselected)):  # type: ignore[attr-defined]
        return f"no conformance test was selected by {' '.join(words)}: this run proves nothing"
    return None


def verdict(finished: Iterable[JournalEntry], facts: SessionFacts) -> EngineVerdict:
    """Returns the verdict on the one engine of the run. Tests without a record count for it."""
    (engine,) = facts.engines
    own = [each for each in finished if each.record is None or each.record.engine == engine]
    asked = Asked(facts.made.command, facts.conditions)
    return verdict_of(engine, own, facts.is_complete, facts.made, asked)
