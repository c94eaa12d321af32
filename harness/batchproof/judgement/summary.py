"""The verdict on an engine in sentences, for its page."""

from collections.abc import Iterable, Iterator

from batchproof.records.table import Totals
from batchproof.records.verdict import EngineVerdict
from batchproof.requirements.promises import Promise

TITLES = {each.id: each.title for each in Promise}


def summary(verdict: EngineVerdict) -> Iterator[str]:
    """Yields what a reader has to know before all figures: paragraphs of Markdown."""
    if not verdict.is_complete:
        num_left = sum(each == "not run" for each in verdict.outcomes.values())
        stopped = "not all tests were run: it was stopped, or options selected some"
        left = f"{num_left:,} requirements were not run" if num_left else stopped
        yield f"**INCOMPLETE**: {left}."
    if not verdict.totals.num_requests:
        yield "**Nothing was compared**: this proves nothing about the engine."
        return
    yield f"`{verdict.engine}` {_kept(verdict)}. {_compared(verdict)}"
    num_silent = sum(group.num_tests for group in verdict.groups if not group.promises)
    if num_silent:
        names = "failure names" if num_silent == 1 else "failures name"
        yield f"**{num_silent} more {names} no promise**: the process ended, or gave no answer."
    if verdict.precision:
        yield (
            f"It was judged as computing in {verdict.precision}, which was declared for it: tolerances "
            f"are measured at that precision; tokens of constructed models must be right all the same."
        )
    if num_refused := [*verdict.outcomes.values()].count("refused"):
        yield f"{num_refused:,} tests on models that it refuses were not run."
    if verdict.untested:
        reasons = "; the reasons are below" if verdict.skips else ""
        yield f"Not tested: {', '.join(verdict.untested)}{reasons}."


def _kept(verdict: EngineVerdict) -> str:
    held, broken, differing = map(len, (verdict.held, verdict.broken, verdict.differing))
    words = f"holds {held} of the {held + broken + differing} promises it was tested on"
    if broken:
        words += f", breaks {_named(verdict.broken)}"
    if differing:
        words += f", and differs by documented conventions in {_named(verdict.differing)}"
    return words


def _compared(verdict: EngineVerdict) -> str:
    total = verdict.totals
    return (
        f"{total.num_requests:,} answers with {total.num_steps:,} tokens were compared in "
        f"{total.num_workloads:,} workloads; {total.num_near_ties:,} tokens were proven near-ties, "
        f"{total.num_logits:,} answers came with logits."
    ) + "".join([*_happened(total), *([_lasted(total)] if total.seconds else [])])


def _happened(total: Totals) -> Iterator[str]:
    """Yields what the engine says that happened."""
    if total.counters:
        counts = ", ".join(f"{number:,} {what}" for what, number in total.counters.items())
        yield f" By the adapter's count: {counts}."


def _lasted(total: Totals) -> str:
    whole, share = total.seconds / 60, total.engine_seconds / total.seconds
    return f" The tests took {whole:.0f} min in all processes together, {share:.0%} of it the engine's."


def _named(promises: Iterable[str]) -> str:
    """Returns the promises with their titles; one of a later suite has none."""
    return ", ".join(f"{p} ({TITLES[p]})" if p in TITLES else p for p in promises)
