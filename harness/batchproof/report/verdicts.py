"""What the files say in a line each, at the top of the page."""

from __future__ import annotations

from collections import Counter

from batchproof.bench.reading import INVALID, UNVERIFIED, VALID
from batchproof.report import markup, words
from batchproof.report.campaigns import num_judged, overall
from batchproof.report.inputs import Kind, Source
from batchproof.report.promises import num_failed


def verdict_line(source: Source) -> str:
    word, kind, told = SUMMARIES[source.kind](source)
    chips = markup.chip(word, kind)
    if not source.is_complete:
        chips += " " + markup.chip("INCOMPLETE", "warn")
        told += "; the run was stopped, and what it had is shown"
    return f"{chips} {markup.text(told)} ({markup.element('code', markup.text(source.path.name))})"


def _benchmark(source: Source) -> tuple[str, str, str]:
    rows = [row for each in source.data["comparisons"] for row in each["rows"]]
    counts = Counter(row["verdict"] for row in rows)
    others = [f"{amount} {verdict}" for verdict, amount in counts.items() if verdict != VALID]
    told = (
        f"{words.many(len(source.data['comparisons']), 'comparison')}: {counts['VALID']} of "
        f"{words.many(len(rows), 'row')} VALID" + "".join(f", {other}" for other in others)
    )
    if counts[INVALID]:
        return INVALID, "bad", told
    if not rows:
        return "EMPTY", "warn", told
    return (VALID, "good", told) if not others else (UNVERIFIED, "warn", told)


def _conformance(source: Source) -> tuple[str, str, str]:
    engines = words.many(len(source.data["engines"]), "engine")
    num_answers = sum(each.get("num_requests", 0) for each in source.data["totals"].values())
    told = f"conformance of {engines}: {num_answers:,} answers compared"
    if failed := num_failed(source):
        return "FAIL", "bad", f"{told}, {words.many(failed, 'test')} failed"
    status = source.data.get("exit_status")
    if status != 0 or not num_answers:
        return "FAIL", "bad", f"{told}; pytest ended with exit status {status}"
    return "PASS", "good", f"{told}, no promise broken"


def _faults(source: Source) -> tuple[str, str, str]:
    tally = overall(source)
    told = f"{tally.num_caught} of {words.many(tally.num_faults, 'planted fault')} caught"
    if tally.num_catches:
        told += f", the right cause named in {tally.num_right} of {tally.num_catches} catches"
    is_fine = tally.num_faults == tally.num_caught
    return ("CAUGHT", "good", told) if is_fine else ("MISSED", "bad", told)


def _honest(source: Source) -> tuple[str, str, str]:
    alarms = len(source.data["alarms"])
    told = f"{num_judged(source):,} workloads on honest engines: " + (
        words.many(alarms, "false alarm") if alarms else "no false alarm"
    )
    return ("ALARMS", "bad", told) if alarms else ("QUIET", "good", told)


SUMMARIES = {
    Kind.BENCHMARK: _benchmark,
    Kind.CONFORMANCE: _conformance,
    Kind.FAULTS: _faults,
    Kind.HONEST: _honest,
}
