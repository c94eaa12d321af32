"""The table engine x promise as text, to which the records of tests add up."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from batchproof.models.embedded import EMBEDDED
from batchproof.records.journal import JournalEntry
from batchproof.records.table import Totals
from batchproof.records.texts import counted
from batchproof.requirements.promises import Promise
from batchproof.requirements.verdict_of_journal import Outcome, cells_of, totals_of

LEGEND = (
    "n: tests passed   ~n: with n near-ties   FAIL n: tests failed   known n: failed as expected",
    "no cap: the engine lacks a capability   refused: it does not serve the model   -: not run",
)


def outcomes_of(
    finished: Iterable[JournalEntry], engines: Sequence[str], models: Sequence[str]
) -> list[Outcome]:
    """Returns the outcome of each conformance test, as one process would report them: workers report in
    any order. Models that the run did not ask for come last."""
    engine_at = {name: at for at, name in enumerate(engines)}
    model_at = {name: at for at, name in enumerate(dict.fromkeys((*models, *EMBEDDED)))}
    outcomes = [(each.outcome, each.record) for each in finished if each.record is not None]
    return sorted(outcomes, key=lambda each: (engine_at[each[1].engine], model_at[each[1].model]))


def num_compared(outcomes: Iterable[Outcome]) -> int:
    """Returns the number of answers that prove something. What a known failure compared before it
    failed does not count."""
    return sum(record.ledger.num_requests for outcome, record in outcomes if outcome != "known")


def table(outcomes: list[Outcome]) -> Iterator[str]:
    engines = list(dict.fromkeys(record.engine for _, record in outcomes))
    cells = {engine: cells_of(engine, outcomes) for engine in engines}
    widths = {e: max(7, len(e), *(len(c.text) for c in cells[e].values())) for e in engines}
    titles = max(len(str(promise)) for promise in Promise)
    yield " " * titles + "".join(f"  {engine:>{widths[engine]}}" for engine in engines)
    for promise in Promise:
        if any(promise.id in row for row in cells.values()):
            found = {engine: cells[engine].get(promise.id) for engine in engines}
            texts = (f"  {cell.text if cell else '-':>{widths[e]}}" for e, cell in found.items())
            yield f"{promise!s:<{titles}}" + "".join(texts)
    yield from LEGEND
    for engine in engines:
        yield totals_line(engine, totals_of(engine, outcomes))


def totals_line(engine: str, total: Totals) -> str:
    """Returns what was compared, in a line."""
    if not total.num_workloads:
        return f"{engine}: no workload was compared to its end"
    workloads, answers = counted(total.num_workloads, "workload"), counted(total.num_requests, "answer")
    tokens, near_ties = counted(total.num_steps, "token"), counted(total.num_near_ties, "near-tie")
    return f"{engine}: {workloads}, {answers} and {tokens} compared, {near_ties}"


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns remarks on the session, each once, and how many tests each refused model has cost."""
    remarks = dict.fromkeys(note for _, record in outcomes for note in record.ledger.notes)
    lists: dict[str, dict[str, None]] = {}
    for _, record in outcomes:
        for text, items in record.ledger.lists.items():
            lists.setdefault(text, {}).update(dict.fromkeys(items))
    listed = [f"{text}: {'; '.join(items)}" for text, items in lists.items()]
    refused = Counter(f"{r.engine} refuses {r.model}" for _, r in outcomes if r.refused is not None)
    lines = (f"{what}: {counted(n, 'test')} not run" for what, n in refused.items())
    return [*remarks, *listed, *lines]


NOTHING_COMPARED = "NOTHING WAS COMPARED: this run proves nothing about any engine"
Line = tuple[str, bool]  # and whether it is bad news


def summary_lines(outcomes: list[Outcome]) -> Iterator[Line]:
    yield from ((line, False) for line in table(outcomes))
    units = {(r.model, r.ledger.error_unit) for _, r in outcomes if r.ledger.error_unit is not None}
    for model, error_unit in sorted(units):
        yield f"model {model}: E {error_unit:.2g}, the reference's own worst logit error", False
    brought = {(r.model, r.adequacy, r.is_adequate) for _, r in outcomes if r.adequacy is not None}
    for model, adequacy, is_adequate in sorted(brought):
        verdict = "adequate" if is_adequate else "INADEQUATE: equal tokens prove little on this model"
        yield f"model {model}: {verdict}; {adequacy}", not is_adequate
    yield from ((f"note: {note}", False) for note in notes(outcomes))
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong:
        yield f"{num_wrong} failed by a wrong case, not by an engine: see above", True
    if num_own := sum(record.is_own_failure for _, record in outcomes) - num_wrong:
        yield f"{num_own} failed by the harness itself, not by an engine: see above", True
    if not num_compared(outcomes) and not any(outcome == "failed" for outcome, _ in outcomes):
        yield NOTHING_COMPARED, True
