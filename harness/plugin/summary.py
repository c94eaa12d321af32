"""How a session ends: failures told in our words, and a table engine x promise.

Fails closed: if conformance tests were collected but no answer was compared, or only tokens of a
model that could not have shown a fault, the session fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from harness.errors import EngineHang, UsageError
from harness.promises import Promise
from harness.verdict import ConformanceFailure
from harness.workloads import DEFAULT_TIME_LIMIT_S

RECORD = "batchproof"
NOTHING_COMPARED = "NOTHING WAS COMPARED: this run proves nothing about any engine"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    record = dict(item.user_properties).get(RECORD)
    if record is None or call.excinfo is None or not report.failed:
        return report
    assert isinstance(record, dict), "the trial fixture puts a dict there"
    error = call.excinfo.value
    if isinstance(error, EngineHang):
        record["broken"] = Promise.P10.id
        report.longrepr = f"{Promise.P10} is broken: {error}\n{_again(item)}"
    elif isinstance(error, UsageError):  # a case that is wrong itself: no engine broke anything
        record["promises"] = []
        report.longrepr = str(error)
    elif isinstance(error, ConformanceFailure):
        record["broken"] = error.promise.id
        report.longrepr = f"{error}\n{_again(item)}"
    return report


def _again(item: pytest.Item) -> str:
    options = []
    for name in ("--engine", "--model", "--device", "--dtype", "--engine-time-limit"):
        value = item.config.getoption(name)
        values = value if isinstance(value, list) else [value]
        options += [
            f"{name}='{each}'" for each in values if each not in (None, "auto", DEFAULT_TIME_LIMIT_S)
        ]
    return " ".join(["again: pytest", f"'{item.nodeid}'", *options])


def _records(reports: Iterable[pytest.TestReport]) -> Iterable[tuple[str, dict[str, Any]]]:
    """(outcome, record) once a conformance test; errors of set-up and tear-down count as failures."""
    for report in reports:
        record = dict(getattr(report, "user_properties", ())).get(RECORD)
        if isinstance(record, dict) and (report.when == "call" or report.outcome != "passed"):
            yield report.outcome, record


def _session_records(config: pytest.Config) -> list[tuple[str, dict[str, Any]]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    stats = [
        report
        for key in ("passed", "failed", "error", "skipped")
        for report in reporter.stats.get(key, ())
    ]
    return list(_records(stats))


def _num_compared(records: Iterable[tuple[str, dict[str, Any]]]) -> int:
    return sum(record.get("ledger", {}).get("num_requests", 0) for _, record in records)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return  # an xdist worker: its controller judges the whole
    records = _session_records(session.config)
    is_clean = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    proves_little = not _num_compared(records) or any(_is_inadequate(r) for _, r in records)
    if records and is_clean and proves_little:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    records = _session_records(terminalreporter.config)
    if not records:
        return
    write = terminalreporter.write_line
    terminalreporter.section("Batchproof: engine x promise")
    engines = list(dict.fromkeys(record["engine"] for _, record in records))
    cells = {engine: _row(engine, records) for engine in engines}
    shown = [p for p in Promise if any(p.id in row for row in cells.values())]
    widths = [max(7, len(engine)) for engine in engines]
    titles = max(len(str(promise)) for promise in Promise)
    write(" " * titles + "".join(f"  {e:>{w}}" for e, w in zip(engines, widths, strict=True)))
    for promise in shown:
        values = [cells[engine].get(promise.id, "-") for engine in engines]
        write(
            f"{promise!s:<{titles}}"
            + "".join(f"  {v:>{w}}" for v, w in zip(values, widths, strict=True))
        )
    write("n: tests passed   ~n: with n near-ties   FAIL n: tests failed")
    write("no cap: the engine lacks a capability   refused: it does not serve the model   -: not run")
    for engine in engines:
        write(_totals(engine, [each for each in records if each[1]["engine"] == engine]))
    for model, error_unit in sorted(_error_units(records)):
        write(f"model {model}: E {error_unit:.2g}, the reference's own worst logit error")
    for model, adequacy, is_inadequate in _adequacies(records):
        verdict = "INADEQUATE: equal tokens prove little on this model" if is_inadequate else "adequate"
        write(f"model {model}: {verdict}; {adequacy}", red=is_inadequate)
    for note in _notes(records):
        write(f"note: {note}")
    if not _num_compared(records):
        write(NOTHING_COMPARED, red=True, bold=True)


def _row(engine: str, records: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Promise id -> cell. A failure counts for the promise it broke, whichever test found it."""
    counts: dict[str, Counter[str]] = {}
    for outcome, record in records:
        if record["engine"] != engine:
            continue
        ids = [record["broken"]] if "broken" in record else record["promises"]
        kind = "inadequate" if outcome == "passed" and _is_inadequate(record) else outcome
        if outcome == "skipped":
            kind = "no cap" if "lacks" in record else "refused" if "refused" in record else "skipped"
        for promise_id in ids:
            count = counts.setdefault(promise_id, Counter())
            count[kind] += 1
            count["near-ties"] += record.get("ledger", {}).get("num_near_ties", 0)
    return {promise_id: _cell(count) for promise_id, count in counts.items()}


def _cell(count: Counter[str]) -> str:
    if count["failed"]:
        return f"FAIL {count['failed']}"
    if count["passed"]:
        return f"{count['passed']}" + (f" ~{count['near-ties']}" if count["near-ties"] else "")
    return next(k for k in ("inadequate", "no cap", "refused", "skipped") if count[k])


def _totals(engine: str, records: list[tuple[str, dict[str, Any]]]) -> str:
    total: Counter[str] = Counter()
    for _, record in records:
        ledger = record.get("ledger", {})
        total.update({key: value for key, value in ledger.items() if isinstance(value, int)})
    return (
        f"{engine}: {total['num_workloads']:,} workloads, {total['num_requests']:,} answers and "
        f"{total['num_steps']:,} tokens compared, {total['num_near_ties']:,} near-ties"
    )


def _is_inadequate(record: dict[str, Any]) -> bool:
    """Judged by the tokens alone of a model that cannot show a fault in them. Logits could."""
    return not record.get("is_adequate", True) and not record.get("ledger", {}).get("num_logits", 0)


def _error_units(records: Iterable[tuple[str, dict[str, Any]]]) -> set[tuple[str, float]]:
    units = ((r["model"], r.get("ledger", {}).get("error_unit")) for _, r in records)
    return {(model, unit) for model, unit in units if unit is not None}


def _adequacies(records: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, bool]]:
    found = {
        (record["model"], record["adequacy"], not record["is_adequate"])
        for _, record in records
        if "adequacy" in record
    }
    return sorted(found)


def _notes(records: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    notes = [note for _, record in records for note in record.get("ledger", {}).get("notes", ())]
    return list(dict.fromkeys(notes))
