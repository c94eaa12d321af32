"""What triage found, as lines and as pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from batchproof.records.markdown import header, line
from batchproof.records.triage import (
    VERDICTS,
    ConfusionRecord,
    EngineTriage,
    Judged,
    ModelTriage,
    TriageRecord,
)

NOTHING = "no answer"
TABLE = """\
Half of the engines are honest: exact ones of unusual design (`odd:`), coarse ones (`coarse:`), and some
that are set otherwise than they are asked (`set:`). Half have a planted fault. Triage sees a factory
and a number, and asks on `gpt2-hash` and `llama-twins`.

A fault can take part if the kill table shows it on `gpt2-hash` or `llama-hash`, as a break of one of P1
to P8, by a test that neither steps the engine nor reads its logits, and if its lie is not one about
returned logits while "the tokens are right": these can change an answer of `generate`. Those whose
cause is PRECISION count as coarse: they change near-ties alone. Faults, kinds of arithmetic and kinds
of settings that the rules were made on are not among the engines held out
(`harness/batchproof/triage/blinded.py`; what earlier sittings have seen of these is told in
`docs/triage.md`). An exact engine is judged rightly as CLEAN or
ROUNDING: its near-ties may fall otherwise than the reference's."""


def engine_lines(found: EngineTriage) -> Iterator[str]:
    """Yields the verdict on an engine and what it rests on."""
    yield f"{found.engine}: {found.verdict or NOTHING}"
    for each in found.models:
        yield f"  {each.model} ({each.dtype}): {each.verdict}: {each.why}"
        yield from (f"    {text}" for text in (*_facts(each), *each.evidence))
        if each.failure:
            yield f"    batchproof replay {each.failure}"
    yield from (f"  {text}" for text in found.refusals)


def _facts(found: ModelTriage) -> Iterator[str]:
    if found.num_requests:
        yield (
            f"{found.num_requests:,} answers, {found.num_tokens:,} tokens, {found.num_scenes} scenes, "
            f"{found.seconds:.0f} s"
        )
    if found.worst_alone is not None and found.worst_batched is not None and found.error_unit:
        yield (
            f"largest margin of a token not taken: {found.worst_alone:.3g} E alone, "
            f"{found.worst_batched:.3g} E in batches (E {found.error_unit:.2g}); as coarse as "
            f"{found.as_coarse_as}"
        )


def triage_page(record: TriageRecord) -> str:
    lines = ["# Triage", "", *record.made.lines(), f"* seed {record.seed}", ""]
    for engine in record.engines:
        lines += ["```", *engine_lines(engine), "```", ""]
    return "\n".join(lines)


def confusion_page(record: ConfusionRecord) -> str:
    wrong = [each for each in record.engines if not each.is_right]
    half = "held out" if record.is_held_out else "seen while the rules were made"
    num = len(record.engines)
    return "\n".join(
        [
            "# Triage, judged on blinded engines",
            "",
            *record.made.lines(),
            f"* seed {record.seed}; engines {half}",
            "",
            f"{num - len(wrong)} of {num} verdicts are right.",
            "",
            TABLE,
            "",
            *_confusion(record),
            "",
            "## Wrong",
            "",
            *(_shown(wrong) if wrong else ["None."]),
            "",
            "## All",
            "",
            *_shown(record.engines),
            "",
        ]
    )


def _confusion(record: ConfusionRecord) -> Iterator[str]:
    said = Counter((_truth(each), each.said.verdict) for each in record.engines)
    columns = (*VERDICTS, *([None] if any(key[1] is None for key in said) else []))
    yield from header("truth", *(str(each or NOTHING) for each in columns))
    for truth in dict.fromkeys(key[0] for key in sorted(said, key=lambda key: key[0])):
        yield line(truth, *(str(said[truth, each] or "") for each in columns))


def _truth(judged: Judged) -> str:
    return " or ".join(judged.truth)


def _shown(engines: tuple[Judged, ...] | list[Judged]) -> Iterator[str]:
    yield from header("engine", "truth", "said", "why", "margin in E", "seconds")
    for each in sorted(engines, key=lambda each: (_truth(each), each.engine)):
        worst = max(each.said.models, key=lambda found: VERDICTS.index(found.verdict), default=None)
        margins = [max(m.worst_alone or 0.0, m.worst_batched or 0.0) for m in each.said.models]
        yield line(
            f"`{each.engine}`: {each.what}",
            _truth(each),
            str(each.said.verdict or NOTHING),
            "; ".join((worst.why, *worst.evidence[:1])) if worst else "; ".join(each.said.refusals),
            f"{max(margins, default=0.0):.3g}",
            f"{sum(found.seconds for found in each.said.models):.0f}",
        )
