"""The verdict of each file in one line, at the top of the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.report import words
from batchproof.report.campaigns import num_judged, overall
from batchproof.report.conformance_tables import num_failed
from batchproof.report.file_origins import INCOMPLETE
from batchproof.report.inputs import Kind, Source
from batchproof.report.table_values import Chip


@dataclass(frozen=True, slots=True)
class Verdict:
    """The line of one file."""

    chips: tuple[Chip, ...]
    text: str
    file: str


def verdict(source: Source) -> Verdict:
    """Returns the line of one file."""
    word, kind, text = SUMMARIES[source.kind](source)
    if source.is_complete:
        return Verdict((Chip(word, kind),), text, source.path.name)
    text += "; the run was stopped, and what it had is shown"
    return Verdict((Chip(word, kind), INCOMPLETE), text, source.path.name)


def _benchmark(source: Source) -> tuple[str, str, str]:
    rows = [row for each in source.data["comparisons"] for row in each["rows"]]
    counts = Counter(row["verdict"] for row in rows)
    others = [f"{amount} {verdict}" for verdict, amount in counts.items() if verdict != VALID]
    text = (
        f"{words.many(len(source.data['comparisons']), 'comparison')}: {counts['VALID']} of "
        f"{words.many(len(rows), 'row')} VALID" + "".join(f", {other}" for other in others)
    )
    if counts[INVALID]:
        return INVALID, "bad", text
    if not rows:
        return "EMPTY", "warn", text
    return (VALID, "good", text) if not others else (UNVERIFIED, "warn", text)


def _conformance(source: Source) -> tuple[str, str, str]:
    engines = words.many(len(source.data["engines"]), "engine")
    num_answers = sum(each.get("num_requests", 0) for each in source.data["totals"].values())
    text = f"conformance of {engines}: {num_answers:,} answers compared"
    if failed := num_failed(source):
        return "FAIL", "bad", f"{text}, {words.many(failed, 'test')} failed"
    status = source.data.get("exit_status")
    if status != 0 or not num_answers:
        return "FAIL", "bad", f"{text}; pytest ended with exit status {status}"
    return "PASS", "good", f"{text}, no promise broken"


def _faults(source: Source) -> tuple[str, str, str]:
    tally = overall(source)
    text = f"{tally.num_caught} of {words.many(tally.num_faults, 'planted fault')} caught"
    if tally.num_catches:
        text += f", the right cause named in {tally.num_right} of {tally.num_catches} catches"
    is_fine = tally.num_faults == tally.num_caught
    return ("CAUGHT", "good", text) if is_fine else ("MISSED", "bad", text)


def _honest(source: Source) -> tuple[str, str, str]:
    alarms = len(source.data["alarms"])
    text = f"{num_judged(source):,} workloads on honest engines: " + (
        words.many(alarms, "false alarm") if alarms else "no false alarm"
    )
    return ("ALARMS", "bad", text) if alarms else ("QUIET", "good", text)


SUMMARIES = {
    Kind.BENCHMARK: _benchmark,
    Kind.CONFORMANCE: _conformance,
    Kind.FAULTS: _faults,
    Kind.HONEST: _honest,
}
