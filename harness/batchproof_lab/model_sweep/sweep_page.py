"""The sweep over model types as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from batchproof.records.markdown import header, line
from batchproof.records.sweep import ModelSweepRecord, ToyRecord

LEGEND = """\
Each type is made small (two layers, or as many as it has kinds of layers; width 64; a window of 5 keys)
and its weights are drawn at random. Six requests of 1 to 33 prompt tokens go through fewer slots:
packed beside others' decodes, in chunks of at most 8 tokens a step, with preemption, and beside
requests that are aborted; in float32, and then in bfloat16.

* **served**: every token and every logit is that of per-prompt generation, within rounding. `worst` is
  the largest difference of a logit from float64 in units of E, the reference's own; beyond 8 is wrong,
  in bfloat16 beyond 3. There is no figure in bfloat16 where rounding alone moves the logits by more
  than 5 % of their spread, as where it sends a token to another expert. The reason says how the model
  is served, if not as packed rows with the engine's own attention.
* **refused**: `UnsupportedModelError` when the engine is built, with this reason.
* **not buildable**: there is no small model, or it does not take token ids alone.
* **unproven**: the toy does not answer to all of its context, or the reference contradicts itself.
* **WRONG**: the engine accepts it, but its answers differ, or it crashes or hangs.

A row `type, form` is a type in another form than by default."""


def models_page(record: ModelSweepRecord) -> str:
    lines = [f"# Causal LMs of transformers before `{record.engine}`", ""]
    lines += [*record.made.lines(), f"* seed {record.seed}", "", *_verdict(record), "", LEGEND, ""]
    lines += header("type", "verdict", "worst", "in bfloat16", "E", "layers", "tokens", "reason")
    lines += [_row(toy) for toy in record.toys]
    return "\n".join([*lines, ""])


def _verdict(record: ModelSweepRecord) -> Iterator[str]:
    if not record.is_complete:
        yield "INCOMPLETE: it was stopped before all types were tried."
        yield ""
    version = record.made.versions.get("transformers", "?")
    yield (
        f"Of {record.num_types} types of transformers {version}: {_counted(record.counts.types)}. "
        f"Of other forms of them: {_counted(record.counts.forms)}."
    )


def _counted(counts: Mapping[str, int]) -> str:
    shown = [f"{count} {verdict}" for verdict, count in counts.items() if count or verdict == "WRONG"]
    return ", ".join(shown)


def _row(toy: ToyRecord) -> str:
    return line(
        toy.name,
        toy.verdict,
        "" if toy.worst is None else f"{toy.worst:.2f}",
        "" if toy.worst_bfloat16 is None else f"{toy.worst_bfloat16:.2f}",
        "" if toy.error_unit is None else f"{toy.error_unit:.1e}",
        toy.layers,
        str(toy.num_tokens or ""),
        toy.reason,
    )
