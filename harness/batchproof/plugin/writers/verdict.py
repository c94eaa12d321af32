"""The verdict on each engine of a run, and in words."""

from collections import Counter
from collections.abc import Iterable

from batchproof.plugin.writers.table import SessionFacts
from batchproof.records.journal import JournalEntry
from batchproof.records.texts import counted
from batchproof.records.verdict import EngineVerdict
from batchproof.requirements.verdict_of_journal import Asked, verdict_of


def verdicts(finished: Iterable[JournalEntry], facts: SessionFacts) -> list[EngineVerdict]:
    """Returns the verdict on each engine of the run. Tests without a record count for all."""
    entries = list(finished)
    asked = Asked(facts.made.command, facts.requirements, facts.conditions)
    return [
        verdict_of(
            engine,
            [each for each in entries if each.record is None or each.record.engine == engine],
            facts.is_complete,
            facts.made,
            asked,
        )
        for engine in facts.engines
    ]


def in_words(verdict: EngineVerdict) -> str:
    """Returns a line such as "held; of 512 requirements 400 held, 112 no capability"."""
    words: list[str] = [verdict.verdict]
    for what, outcomes in (("requirement", verdict.outcomes), ("unscored test", verdict.unscored)):
        tally = ", ".join(f"{count} {word}" for word, count in Counter(outcomes.values()).items())
        words += [f"of {counted(len(outcomes), what)} {tally}"] if outcomes else []
    return "; ".join(words)
